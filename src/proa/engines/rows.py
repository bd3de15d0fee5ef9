"""The sequences that are decoded with one version of the weights, step by step, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from ..data.sampling import Sampling
from .cache import BLOCK, BlockCache, blocks_for
from .choice import choose
from .decoder import Decoder, Prefilled, Rotation
from .product_shapes import ProductShapes
from .protocol import Request
from .sequences import DecodedSequence, Given, Group, Sampled, SamplingRule

PREFILL_TOKENS = 8192
"""The most prompt tokens, with padding, of one pass, to bound the memory of activations."""
CHUNK = 1024
"""The most tokens of one sequence in a pass; longer sequences are split."""
_SCORED = 64
"""Sequences that are scored together."""


class Rows:
    """Weights, a cache, and a sequence in each of its first rows."""

    def __init__(self, decoder: Decoder, shapes: ProductShapes, end_ids: frozenset[int] = frozenset()) -> None:
        self.decoder = decoder
        self.shapes = shapes
        self.live: list[DecodedSequence] = []
        self._end_ids = end_ids
        self._cache = BlockCache(decoder.cache_shape)
        self._prompts: dict[Group, Prefilled] = {}
        self._rotation: Rotation | None = None
        self._rotated = 0
        self._kept_tokens = 0

    # -- room ----------------------------------------------------------------------------------------

    @property
    def cache_tokens(self) -> int:
        """The number of tokens that there is memory for, including kept ones."""
        return self._cache.tokens + self._kept_tokens

    def tokens_alone(self, sequence: DecodedSequence) -> int:
        """The tokens of an empty cache that a sequence takes."""
        return self.shapes.rows_for(1) * blocks_for(sequence.longest) * BLOCK

    def tokens_needed(self, entering: Sequence[DecodedSequence]) -> int:
        """The tokens of memory that are added when these enter."""
        if not entering:
            return 0
        longest = max(sequence.longest for sequence in entering)
        rows = self.shapes.rows_for(len(self.live) + len(entering))
        return self._cache.tokens_with(rows, longest) - self._cache.tokens

    def compact(self, entering: Sequence[DecodedSequence]) -> None:
        """Free the memory if there are no rows and its shape does not suit these, which are to enter."""
        if not self.live:
            rows = self.shapes.rows_for(len(entering)) if entering else 0
            self._cache.start_with(rows, max((sequence.longest for sequence in entering), default=0))

    def release(self) -> None:
        """Free all memory that is not needed now."""
        self.compact([])

    def changing(self) -> AbstractContextManager[None]:
        """A context for writing weights, while nothing is decoded."""
        return nullcontext()

    # -- beginning -----------------------------------------------------------------------------------

    def enter(self, sequences: Sequence[DecodedSequence]) -> None:
        """Give rows to these sequences. For new ones compute prompts, once for a group, and choose the first token;
        those that continue another start from its cache."""
        if not sequences:
            return
        longest = max(sequence.longest for sequence in sequences)
        self._cache.reserve(self.shapes.rows_for(len(self.live) + len(sequences)), longest)
        for sequence in sequences:
            if sequence.cached is not None:
                assert isinstance(sequence.cached, Prefilled)
                self.place(sequence, sequence.cached)
                self.drop(sequence.cached)
                sequence.next_token = sequence.segments[-1 - len(sequence.todo)].tokens[-1]
                sequence.cached = None
        new = [sequence for sequence in sequences if sequence.length == 0]
        if not new:
            return
        prompts = {sequence.group: sequence.todo.popleft().tokens for sequence in new}
        missing = {group: tokens for group, tokens in prompts.items() if group not in self._prompts}
        if missing:
            self._prompts |= zip(missing, self.prefill(list(missing.values())), strict=True)
        first = len(self.live)
        for sequence in new:
            self.place(sequence, self._prompts[sequence.group])
        self._advance(self._stacked([self._prompts[sequence.group].logits for sequence in new]), first)

    def place(self, sequence: DecodedSequence, start: Prefilled) -> None:
        """Give a row to a sequence with these first tokens."""
        self._cache.reserve(self.shapes.rows_for(len(self.live) + 1), sequence.longest)
        self._cache.put(len(self.live), start.keys, start.values)
        sequence.length = start.keys.shape[2]
        self.live.append(sequence)

    def forget_prompts(self, is_awaited: Callable[[Group], bool]) -> None:
        """Forget the prompts of groups without waiting sequences."""
        self._prompts = {group: prompt for group, prompt in self._prompts.items() if is_awaited(group)}

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Compute prompts, those of one padded length together."""
        self._extend_rotation(max(map(len, prompts)) + self.shapes.tokens_for(1))
        found: dict[tuple[int, ...], Prefilled] = {}
        for batch in self._batches(dict.fromkeys(prompts)):
            first = [prompt[:CHUNK] for prompt in batch]
            found |= zip(batch, self.decoder.prefill(first, self._rotation, self.shapes), strict=True)
        for prompt in found:
            for start in range(CHUNK, len(prompt), CHUNK):
                found[prompt] = self._pass_after(found[prompt], prompt[start : start + CHUNK])
        return [found[prompt] for prompt in prompts]

    def _batches(self, prompts: Iterable[tuple[int, ...]]) -> Iterable[list[tuple[int, ...]]]:
        """Batches of prompts whose first chunks have the same padded length, within the budget of tokens."""
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for prompt in prompts:
            by_length.setdefault(self.shapes.tokens_for(min(len(prompt), CHUNK)), []).append(prompt)
        for length, same in by_length.items():
            size = self.shapes.prompts_for(length, PREFILL_TOKENS)
            yield from (same[first : first + size] for first in range(0, len(same), size))

    def _pass_after(self, past: Prefilled, tokens: tuple[int, ...]) -> Prefilled:
        return self.decoder.prefill_after(past, tokens, self._rotation, self.shapes).after(past)

    # -- stepping ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Decode one more token of every sequence."""
        self._advance(self.follow(), 0)

    def _advance(self, logits_BV: torch.Tensor, first: int) -> None:
        """Choose the next token of every row from `first` on; the logits are those of these rows, then padding."""
        by_settings: dict[SamplingRule, list[int]] = {}
        for place, sequence in enumerate(self.live[first:]):
            if not sequence.samples_next:
                logits_V = self._pass_segments(first + place, logits_BV[place])
                if logits_V is None:
                    continue
                logits_BV[place] = logits_V
            by_settings.setdefault(sequence.settings, []).append(place)
        for places in by_settings.values():
            sequences = [self.live[first + place] for place in places]
            is_all = len(places) == len(self.live) - first
            self._sample(sequences, logits_BV if is_all else self._stacked(list(logits_BV[places])))

    def _stacked(self, logits: list[torch.Tensor]) -> torch.Tensor:
        """Rows of logits with a step's padding."""
        return torch.stack(logits + [logits[0]] * (self.shapes.rows_for(len(logits)) - len(logits)))

    def _sample(self, sequences: Sequence[DecodedSequence], logits_BV: torch.Tensor) -> None:
        """Choose the next token of sequences that have the same settings, from the first rows of these logits."""
        draws = [sequence.draw() for sequence in sequences] + [0.0] * (len(logits_BV) - len(sequences))
        uniforms_B = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)
        seen = [sequence.seen for sequence in sequences]
        tokens_B, log_probs_B = choose(logits_BV, uniforms_B, sequences[0].request.sampling, seen)
        for sequence, token, log_prob in zip(sequences, tokens_B.tolist(), log_probs_B.tolist(), strict=False):
            sequence.choose(token, log_prob, is_end=token in self._end_ids)

    def _pass_segments(self, row: int, logits_V: torch.Tensor) -> torch.Tensor | None:
        """The logits that this row samples from, after passing its remaining segments; None if its next token is
        given."""
        sequence = self.live[row]
        while not sequence.forced:
            if not sequence.todo:
                return logits_V
            segment = sequence.todo.popleft()
            if isinstance(segment, Sampled):
                sequence.forced.extend(segment.tokens)
            else:
                logits_V = self._give(row, segment)
        sequence.next_token = sequence.forced.popleft()
        return None

    def _give(self, row: int, segment: Given) -> torch.Tensor:
        sequence = self.live[row]
        past = Prefilled(*self._cache.take(row, sequence.length), torch.empty(0))
        start = sequence.length
        self._extend_rotation(start + len(segment.tokens) + self.shapes.tokens_for(1))
        for first in range(0, len(segment.tokens), CHUNK):
            past = self._pass_after(past, segment.tokens[first : first + CHUNK])
        self._cache.put(row, past.keys[:, :, start:], past.values[:, :, start:], start)
        sequence.length = past.keys.shape[2]
        return past.logits

    def follow(self) -> torch.Tensor:
        """The logits of every live row after its next token, then those of padding."""
        count, rows = len(self.live), self.shapes.rows_for(len(self.live))
        lengths = [sequence.length for sequence in self.live]
        self._extend_rotation(max(lengths) + 1)
        tokens = [sequence.next_token for sequence in self.live] + [0] * (rows - count)
        tokens_B = torch.tensor(tokens, device=self.decoder.device)
        positions_B = torch.tensor(lengths + [0] * (rows - count), device=self.decoder.device)
        columns = self._cache.open(lengths, positions_B)
        logits_BV = self.decoder.step(tokens_B, positions_B, self._rotation, self._cache, columns)
        for sequence in self.live:
            sequence.length += 1
        return logits_BV

    # -- ending --------------------------------------------------------------------------------------

    def kept(self, row: int) -> Prefilled:
        """A copy of a row's cache."""
        length = self.live[row].length
        self._kept_tokens += length
        return Prefilled(*self._cache.take(row, length), torch.empty(0))

    def drop(self, kept: object) -> None:
        """Release a kept copy."""
        assert isinstance(kept, Prefilled)
        self._kept_tokens -= kept.keys.shape[2]

    def remove(self, rows: Iterable[int]) -> None:
        """Free rows; the last ones take their places."""
        for row in sorted(rows, reverse=True):
            last = self.live.pop()
            if row < len(self.live):
                self._cache.move(len(self.live), row, last.length)
                self.live[row] = last

    def _extend_rotation(self, length: int) -> None:
        """Extend the table of rotations to this many positions."""
        if length > self._rotated:
            self._rotated = max(128, 1 << (length - 1).bit_length())
            self._rotation = self.decoder.rotation(self._rotated)

    # -- scoring -------------------------------------------------------------------------------------

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The log-probabilities of each sequence's tokens but the first, at temperature 1, by steps as in decoding."""
        scored = []
        together = self.shapes.decoded_rows or _SCORED
        for first in range(0, len(sequences), together):
            scored += Rows(self.decoder, self.shapes)._score_together(sequences[first : first + together])
        return scored

    def _score_together(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        scored: dict[DecodedSequence, list[float]] = {}
        for place, tokens in enumerate(sequences):
            first, rest = tuple(tokens[:1]), tuple(tokens[1:])
            sampling = Sampling(max_new_tokens=max(1, len(rest)))
            sequence = DecodedSequence(Request(str(place), first, 0, sampling), [Given(first)])
            sequence.forced.extend(rest)
            scored[sequence] = []
        starts = self.prefill([sequence.request.tokens for sequence in scored])
        for sequence, start in zip(scored, starts, strict=True):
            self.place(sequence, start)
        logits_BV = torch.stack([start.logits for start in starts])
        while self.live:
            log_probs_BV = logits_BV[: len(self.live)].float().log_softmax(-1)
            for row, sequence in enumerate(self.live):
                if sequence.forced:
                    sequence.next_token = sequence.forced.popleft()
                    scored[sequence].append(float(log_probs_BV[row, sequence.next_token]))
                else:
                    sequence.finish_reason = "length"
            self.remove([row for row, sequence in enumerate(self.live) if sequence.finish_reason is not None])
            if self.live:
                logits_BV = self.follow()
        return [torch.tensor(log_probs, dtype=torch.float32) for log_probs in scored.values()]
