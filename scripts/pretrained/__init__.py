"""How the models that ship with the package are made: see scripts/train_pretrained.py."""
