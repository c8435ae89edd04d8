"""The Hydra configuration: `pkg://vtoken_sdk.conf`. Every key is explained in its YAML file."""
