"""The bundled policies, one a file. Each states the paper it follows and where it departs from it."""
