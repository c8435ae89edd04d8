"""The bundled policies, each against a plain reimplementation of its paper's definition."""
