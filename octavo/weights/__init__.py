"""Where tensors come from: safetensors, GGUF, random numbers, a hub, the demo models."""
