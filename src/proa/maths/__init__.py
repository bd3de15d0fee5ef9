"""Pure functions of tensors, each with its equation and its paper.

Shapes are suffixes: `B` sequences, `T` completion tokens, `G` completions of one prompt. `mask_BT` is bool and
True at the tokens that are trained; what stands in the other slots, inf and NaN included, touches no value and
no gradient.
"""
