"""GPT-2 as published; knows no rank, no engine and no data.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3: pre-norm
blocks, a final LayerNorm, learned positions, residual projections initialised with std
0.02 / sqrt(2 n_layer); tanh GELU and the tied output head as in the released model. Parameter
names are those of the released checkpoint in its usual layout, so weights can be exchanged.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from toolkit.model.cache import KeyValueCache, LayerCache
from toolkit.model.loss import chunked_cross_entropy_sum, cross_entropy_sum
from toolkit.model.sizes import Loss, ModelSizes

INIT_STD = 0.02


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and what came before."""

    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, cache: LayerCache | None = None) -> torch.Tensor:
        """[B, T, n_embd] -> [B, T, n_embd]; T is 1 where the cache holds earlier positions."""
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(C, dim=2)
        )
        if cache is not None:
            k, v = cache.append(k, v)
        dropout = self.dropout if self.training else 0.0
        # One position after others sees all of them; no mask is needed.
        is_causal = k.shape[2] == T
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))


class MLP(nn.Module):
    """Four times wider inside, tanh GELU between."""

    def __init__(self, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, n_embd] -> [B, T, n_embd]."""
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """One transformer layer: the unit that is sharded, recomputed and compiled."""

    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd, dropout)

    def forward(self, x: torch.Tensor, cache: LayerCache | None = None) -> torch.Tensor:
        """[B, T, n_embd] -> [B, T, n_embd]."""
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


class Head(nn.Linear):
    """The output projection, whose weight is the token embedding's; computes the loss itself.

    The loss is a method of the module that owns the weight, so that whatever an engine does to
    have that weight at hand for the module's forward also covers the chunked loss.
    """

    def __init__(self, n_embd: int, vocab_size: int, loss: Loss) -> None:
        super().__init__(n_embd, vocab_size, bias=False)
        self.loss = loss

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """[B, T, n_embd] -> logits [B, T, vocab_size], or the loss sum if `targets` are given."""
        if targets is None:
            return super().forward(x)
        if self.loss == "chunked":
            return chunked_cross_entropy_sum(x, self.weight, targets)
        return cross_entropy_sum(super().forward(x), targets)


class Transformer(nn.Module):
    """Embeddings, blocks and the final norm: everything below the head."""

    def __init__(self, sizes: ModelSizes, dropout: float, activation_checkpointing: bool) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        self.wte = nn.Embedding(sizes.vocab_size, sizes.n_embd)
        self.wpe = nn.Embedding(sizes.block_size, sizes.n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(
            Block(sizes.n_embd, sizes.n_head, dropout) for _ in range(sizes.n_layer)
        )
        self.ln_f = nn.LayerNorm(sizes.n_embd)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, T] int64 -> [B, T, n_embd]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = self._run(block, x)
        return self.ln_f(x)

    def extend(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """[B, T] int64 that follow what the cache holds -> [B, T, n_embd]; the cache then has both.

        Only an empty cache takes more than one token at a time.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device) + cache.length
        x = self.wte(tokens) + self.wpe(positions)
        for block, layer in zip(self.h, cache.layers, strict=True):
            x = block(x, layer)
        return self.ln_f(x)

    def _run(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, use_reentrant=False)
        return block(x)


class GPT2(nn.Module):
    """The whole model.

    Args:
        sizes: layers, heads, width, block size and (padded) vocabulary size.
        dropout: probability, on embeddings, attention weights and residual branches.
        activation_checkpointing: keep only each block's input and recompute the rest.
        loss: `plain` holds all logits, `chunked` never does.
    """

    def __init__(
        self,
        sizes: ModelSizes,
        *,
        dropout: float = 0.0,
        activation_checkpointing: bool = False,
        loss: Loss = "plain",
    ) -> None:
        super().__init__()
        self.transformer = Transformer(sizes, dropout, activation_checkpointing)
        self.lm_head = Head(sizes.n_embd, sizes.vocab_size, loss)
        self.tie_weights()
        self._initialise(sizes.n_layer)

    def tie_weights(self) -> None:
        """Make the head use the token embedding; engines call it again after moving parameters."""
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, or the summed loss.

        Args:
            tokens: [B, T] int64, T <= block_size.
            targets: [B, T] int64, or None.

        Returns:
            Logits [B, T, vocab_size]; with `targets` a scalar: the sum of -log p over valid ones.
        """
        return self.lm_head(self.transformer(tokens), targets)

    def next_logits(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """[B, T] int64, as `Transformer.extend` -> logits of what comes next, [B, vocab_size]."""
        return self.lm_head(self.transformer.extend(tokens, cache)[:, -1])

    def _initialise(self, n_layer: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=INIT_STD / math.sqrt(2 * n_layer))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=INIT_STD)
