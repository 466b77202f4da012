"""``octavo bench paper``: the figures of the PagedAttention paper (Kwon et al., SOSP 2023), measured again."""
