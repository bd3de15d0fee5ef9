"""The sequences that are decoded with one version of the weights, on an NVIDIA GPU.

A step is launched before the one before it has been looked at, so that the GPU never waits for Python: what a step
chose is known to the host one step later.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from ..decoder import Decoder
from ..sequences import DecodedSequence, Group
from .passes import BLOCK, CHUNK, ROWS, Cache, PromptPass, RowState, StepPass, make_cache

_CHUNKS = (2, 4, 8, 16)
"""How many chunks of prompts a pass may have; the bits do not depend on it."""


class BlockPool:
    """The blocks of a cache that all versions of the weights share."""

    def __init__(self, decoder: Decoder, blocks: int, context: int) -> None:
        self.cache: Cache = make_cache(decoder, blocks, context)
        self.table_columns = -(-context // BLOCK) + 2  # the last block of a prompt and of the rest may be half empty
        self._free = list(range(blocks - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: Iterable[int]) -> None:
        self._free.extend(blocks)


@dataclass(eq=False)
class _Prompt:
    """A prompt in the cache, all but its last token, and how many sequences use it."""

    tokens: tuple[int, ...]
    blocks: list[int]
    users: int = 0

    @property
    def cached(self) -> int:
        return len(self.tokens) - 1


@dataclass(eq=False)
class _Placed:
    """Where a sequence is decoded."""

    row: int
    prompt: _Prompt
    blocks: list[int]
    is_over: bool = False
    """Whether the device has ended it."""


@dataclass
class _Launched:
    """A step that is under way: what it will say, when, and of whom."""

    said: torch.Tensor
    done: torch.cuda.Event
    sequences: list[tuple[int, DecodedSequence]]


@dataclass
class _Staging:
    """Memory of the host from which the device copies by itself."""

    buffers: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def hold(self, name: str, values: torch.Tensor) -> torch.Tensor:
        key = (name, values.numel())
        if key not in self.buffers:
            self.buffers[key] = torch.empty_like(values, pin_memory=True)
        held = self.buffers[key].view(values.shape)
        held.copy_(values)
        return held


class CudaRows:
    """Weights, the blocks of a cache, and sequences in rows of a fixed number."""

    def __init__(self, decoder: Decoder, pool: BlockPool, slots: int, end_ids: frozenset[int]) -> None:
        self.decoder = decoder
        self.live: list[DecodedSequence] = []
        self._pool = pool
        self._end_ids = end_ids
        rows = -(-slots // ROWS) * ROWS
        self._state = RowState(rows, pool.table_columns, sorted(end_ids), decoder.device)
        self._step_pass = StepPass(decoder, pool.cache, self._state)
        self._prompt_passes = {
            chunks: PromptPass(decoder, pool.cache, chunks, pool.table_columns) for chunks in _CHUNKS
        }
        self._free_rows = list(range(slots - 1, -1, -1))
        self._placed: dict[DecodedSequence, _Placed] = {}
        self._prompts: dict[Group, _Prompt] = {}
        self._said = torch.empty(3, rows, dtype=torch.int32, device=decoder.device)
        self._said_here = [torch.empty(3, rows, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self._staging = [_Staging(), _Staging()]
        self._launched: deque[_Launched] = deque()
        self._steps = 0
        self._stream: torch.cuda.Stream = torch.cuda.Stream(decoder.device)  # type: ignore[no-untyped-call]
        self._step_graph, self._prompt_graphs = self._capture()

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, dict[int, torch.cuda.CUDAGraph]]:
        """Run every pass once, which compiles its kernels, and record it."""

        def recorded(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
            with torch.cuda.stream(self._stream):
                launch()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                launch()
            return graph

        torch.cuda.synchronize(self.decoder.device)
        prompts = {chunks: recorded(one.launch) for chunks, one in self._prompt_passes.items()}
        return recorded(self._launch_step), prompts

    def _launch_step(self) -> None:
        state = self._state
        self._step_pass.launch()
        self._said[0].copy_(state.chosen)
        self._said[1].copy_(state.log_probs.view(torch.int32))
        self._said[2].copy_(state.reasons)

    # -- room ----------------------------------------------------------------------------------------

    def blocks_for(self, entering: Sequence[DecodedSequence]) -> int:
        """How many blocks these need when they enter together."""
        new = {one.group for one in entering} - self._prompts.keys()
        shared = sum(_blocks(len(tokens) - 1) for group, tokens in _prompts_of(entering).items() if group in new)
        return shared + sum(_blocks(sequence.request.sampling.max_new_tokens) for sequence in entering)

    # -- beginning -----------------------------------------------------------------------------------

    def enter(self, sequences: Sequence[DecodedSequence]) -> None:
        """Give rows to these; prompts are computed once for a group."""
        if not sequences:
            return
        with torch.cuda.stream(self._stream):
            self._prefill(_prompts_of(sequences))
            for sequence in sequences:
                prompt = self._prompts[sequence.group]
                prompt.users += 1
                blocks = self._pool.take(_blocks(sequence.request.sampling.max_new_tokens))
                self._placed[sequence] = _Placed(self._free_rows.pop(), prompt, blocks)
                sequence.todo.clear()
                self.live.append(sequence)
            self._write_state(sequences)

    def _prefill(self, prompts: dict[Group, tuple[int, ...]]) -> None:
        """Put prompts that are not there into the cache."""
        chunks: list[tuple[_Prompt, int]] = []
        for group, tokens in prompts.items():
            if group in self._prompts:
                continue
            prompt = self._prompts[group] = _Prompt(tokens, self._pool.take(_blocks(len(tokens) - 1)))
            chunks += [(prompt, start) for start in range(0, prompt.cached, CHUNK)]
        for first in range(0, len(chunks), _CHUNKS[-1]):
            self._pass_over(chunks[first : first + _CHUNKS[-1]], first)

    def _pass_over(self, chunks: Sequence[tuple[_Prompt, int]], number: int) -> None:
        count = next(count for count in _CHUNKS if count >= len(chunks))
        one = self._prompt_passes[count]
        tokens, places = torch.zeros(count, CHUNK, dtype=torch.int64), torch.zeros(count, 3, dtype=torch.int32)
        table = torch.zeros(count, self._pool.table_columns, dtype=torch.int32)
        for chunk, (prompt, start) in enumerate(chunks):
            own = prompt.tokens[start : min(start + CHUNK, prompt.cached)]
            tokens[chunk, : len(own)] = torch.tensor(own)
            places[chunk] = torch.tensor([start, len(own), prompt.cached])
            table[chunk, : len(prompt.blocks)] = torch.tensor(prompt.blocks)
        self._copy(f"tokens {number}", tokens.flatten(), one.tokens)
        self._copy(f"places {number}", places, one.chunks)
        self._copy(f"table {number}", table, one.table)
        self._prompt_graphs[count].replay()

    def _write_state(self, sequences: Sequence[DecodedSequence]) -> None:
        """Let rows begin: the last token of a prompt is the first that is decoded."""
        states, table = [], torch.zeros(len(sequences), self._pool.table_columns, dtype=torch.int32)
        for place, sequence in enumerate(sequences):
            placed, request = self._placed[sequence], sequence.request
            cached = placed.prompt.cached
            temperature = struct.unpack("q", struct.pack("d", request.sampling.temperature))[0]
            limit = request.sampling.max_new_tokens
            states.append([placed.prompt.tokens[-1], cached, cached, request.seed, 0, 0, limit, temperature])
            blocks = placed.prompt.blocks + placed.blocks
            table[place, : len(blocks)] = torch.tensor(blocks)
        rows = torch.tensor([self._placed[sequence].row for sequence in sequences])
        index = self._on_device("rows", rows)
        self._state.state.index_copy_(0, index, self._on_device("states", torch.tensor(states)))
        self._state.table.index_copy_(0, index, self._on_device("tables", table))

    def _copy(self, name: str, values: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(self._staging[self._steps % 2].hold(name, values), non_blocking=True)

    def _on_device(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return self._staging[self._steps % 2].hold(name, values).to(self.decoder.device, non_blocking=True)

    def forget_prompts(self, is_awaited: Callable[[Group], bool]) -> None:
        """Of groups that nobody uses and nobody waits for."""
        for group in [one for one, prompt in self._prompts.items() if not prompt.users and not is_awaited(one)]:
            self._pool.give_back(self._prompts.pop(group).blocks)

    # -- stepping ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Launch a step, and take in what the one before it chose."""
        with torch.cuda.stream(self._stream):
            self._step_graph.replay()
            said = self._said_here[self._steps % 2]
            said.copy_(self._said, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        sequences = [(self._placed[sequence].row, sequence) for sequence in self.live]
        self._launched.append(_Launched(said, done, sequences))
        self._steps += 1
        if len(self._launched) == 2:
            self._take(self._launched.popleft())

    def _take(self, launched: _Launched) -> None:
        launched.done.synchronize()
        tokens, log_prob_bits, reasons = launched.said
        chosen, log_probs, ends = tokens.tolist(), log_prob_bits.view(torch.float32).tolist(), reasons.tolist()
        for row, sequence in launched.sequences:
            if sequence.finish_reason is None and ends[row] >= 0:
                sequence.choose(chosen[row], log_probs[row], is_end=chosen[row] in self._end_ids)
                if ends[row] > 0:
                    self._placed[sequence].is_over = True

    def remove(self, places: Iterable[int]) -> None:
        """Free the rows of sequences, by their place in `live`."""
        gone = [self.live[place] for place in places]
        with torch.cuda.stream(self._stream):
            for sequence in gone:
                placed = self._placed.pop(sequence)
                if not placed.is_over:  # the device goes on with it
                    self._state.state[placed.row, 1] = -1
                self._free_rows.append(placed.row)
                self._pool.give_back(placed.blocks)
                placed.prompt.users -= 1
        self.live = [sequence for sequence in self.live if sequence in self._placed]


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def _prompts_of(sequences: Sequence[DecodedSequence]) -> dict[Group, tuple[int, ...]]:
    return {sequence.group: sequence.segments[0].tokens for sequence in sequences}
