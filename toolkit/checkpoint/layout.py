"""What GPT-2 is in transformers: its names and layout, where they differ from those here.

Names are the same. Its linear layers are Conv1D, whose weights are [in, out] where ours are
[out, in]; its head is the token embedding, stored once; its vocabulary has no padding.
"""

EMBEDDING = "transformer.wte.weight"
POSITIONS = "transformer.wpe.weight"
HEAD = "lm_head.weight"
TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")

# What the model here computes, by the keys of transformers' `config.json`.
COMPUTATION = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
