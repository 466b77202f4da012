"""Where steps run: behind the protocol in ``base``, in this process or elsewhere."""
