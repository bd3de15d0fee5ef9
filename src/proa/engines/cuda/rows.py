"""The sequences that are decoded with one version of the weights, on an NVIDIA GPU.

A step is launched before the one before it has been looked at, so that the GPU never waits for Python: what a step
chose is known to the host one step later. Passes over prompts run beside the steps, in a stream of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from ...data.sampling import Sampling
from ...errors import SettingError
from ..decoder import Decoder
from ..sequences import DecodedSequence, Group
from . import kernels
from .passes import BLOCK, CHUNK, ROWS, PromptPass, RowState, StepPass
from .phases import Pass, Steps, phases_of
from .placements import (
    CachedPrompt,
    KeptBlocks,
    LaunchedPass,
    LaunchedStep,
    Placement,
    PromptChunk,
    RecordedPasses,
    RowInput,
)
from .pool import BlockPool, blocks_for

_CHUNKS = (2, 4, 8, 16)
"""How many chunks of prompts a pass may have; the bits do not depend on it."""


class CudaRows:
    """Weights, the blocks of a cache, and sequences in rows of a fixed number."""

    def __init__(self, decoder: Decoder, pool: BlockPool, slots: int, end_ids: frozenset[int]) -> None:
        self.decoder = decoder
        self.live: list[DecodedSequence] = []
        self._pool = pool
        self._end_ids = end_ids
        rows = -(-slots // ROWS) * ROWS
        self._state = RowState(rows, pool.table_columns, sorted(end_ids), decoder.device)
        self._free_rows = list(range(slots - 1, -1, -1))
        self._placed: dict[DecodedSequence, Placement] = {}
        self._decoding: set[DecodedSequence] = set()
        self._passing: deque[LaunchedPass] = deque()
        self._without_row: deque[DecodedSequence] = deque()  # whose prompts are computed
        self._launched: deque[LaunchedStep] = deque()
        self._prompts: dict[Group, CachedPrompt] = {}
        self._said = torch.empty(3, rows, dtype=torch.int32, device=decoder.device)
        self._said_here = [torch.empty(3, rows, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self._steps = 0
        self._recorded: RecordedPasses | None = None

    # -- launches ------------------------------------------------------------------------------------

    @property
    def _ready(self) -> RecordedPasses:
        """Every pass, run once, which compiles its kernels, and recorded; again if the cache has moved."""
        cache = self._pool.cache
        if self._recorded is None or self._recorded.cache is not cache:
            self._recorded = None
            prompts = {chunks: PromptPass(self.decoder, cache, chunks, self._pool.table_columns) for chunks in _CHUNKS}
            step = StepPass(self.decoder, cache, self._state)
            torch.cuda.synchronize(self.decoder.device)
            prompt_graphs = {chunks: self._record(one.launch) for chunks, one in prompts.items()}
            step_graph = self._record(lambda: self._launch_step(step.launch))
            self._recorded = RecordedPasses(cache, step, prompts, step_graph, prompt_graphs)
        return self._recorded

    def _record(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        stream = self._pool.steps
        with torch.cuda.stream(stream):
            launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # others go on meanwhile
            launch()
        return graph

    def _launch_step(self, launch: Callable[[], None]) -> None:
        state = self._state
        launch()
        self._said[0].copy_(state.chosen)
        self._said[1].copy_(state.log_probs.view(torch.int32))
        self._said[2].copy_(state.reasons)

    def prepare(self) -> None:
        """Compile and record, if that was not done: before rows have a state, for recording runs a step."""
        _ = self._ready

    def _prepare_penalties(self) -> None:
        """Record the step with penalties, and have memory for it, if that was not done. Others may be decoded."""
        recorded = self._ready
        if recorded.penalised_graph is not None:
            return
        with torch.cuda.stream(self._pool.steps), self._rows_set_aside():  # recording runs a step
            recorded.step.allow_penalties()
            recorded.penalised_graph = self._record(lambda: self._launch_step(recorded.step.launch_penalised))

    @contextmanager
    def _rows_set_aside(self) -> Iterator[None]:
        """No row is decoded inside; afterwards each is as it was, whatever failed. In the stream of steps."""
        rows = (self._state.state, self._state.table, self._state.forced)
        saved = [one.clone() for one in rows]
        self._state.state[:, kernels.POSITION.value] = -1
        try:
            yield
        finally:
            for one, before in zip(rows, saved, strict=True):
                one.copy_(before)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Weights may be written while nothing is decoded: after the last launch that reads them, before the next. In
        the end they are written, and whoever brought them may let them go."""
        writing = torch.cuda.current_stream(self.decoder.device)
        writing.wait_stream(self._pool.steps)
        writing.wait_stream(self._pool.passes)
        yield
        writing.synchronize()

    # -- room ----------------------------------------------------------------------------------------

    @property
    def cache_tokens(self) -> int:
        """How many tokens of the cache are taken: by all versions, which share it."""
        return (self._pool.blocks - len(self._pool)) * BLOCK

    def tokens_alone(self, sequence: DecodedSequence) -> int:
        """How many tokens of an empty cache it takes."""
        prompt = blocks_for(len(sequence.segments[0].tokens) - 1)
        return BLOCK * (prompt + _own_blocks(sequence))

    def tokens_needed(self, entering: Sequence[DecodedSequence]) -> int:
        """How many tokens of the cache these take beyond what is taken."""
        new = {one.group: one.segments[0].tokens for one in entering if one.cached is None}
        shared = sum(blocks_for(len(tokens) - 1) for group, tokens in new.items() if group not in self._prompts)
        held = sum(len(_kept(one).blocks) for one in entering if one.cached is not None)
        return BLOCK * (shared + sum(map(_own_blocks, entering)) - held)

    def compact(self, entering: Sequence[DecodedSequence]) -> None:
        """There is nothing to gain: blocks fit every sequence."""

    def release(self) -> None:
        """Give the memory back, if nothing is in it."""
        self._pool.release()
        if not self.live:
            torch.cuda.synchronize(self.decoder.device)  # the last step that was launched may still write there
            self._recorded = None
            self._state.seen = None

    # -- beginning -----------------------------------------------------------------------------------

    def enter(self, sequences: Sequence[DecodedSequence]) -> None:
        """Take these in, in the order in which they get rows as rows are free. Prompts are computed once for a group;
        what continues another goes on from its cache."""
        if not sequences:
            return
        self.prepare()
        if any(sequence.is_penalised for sequence in sequences):
            self._prepare_penalties()
        for sequence in sequences:
            self._placed[sequence] = self._place(sequence)
            self.live.append(sequence)
        self._go_on(sequences)

    def _place(self, sequence: DecodedSequence) -> Placement:
        todo, sequence.todo = sequence.todo, deque()
        if sequence.cached is not None:
            kept = _kept(sequence)
            sequence.cached = None
            blocks = kept.blocks + self._pool.take(_own_blocks(sequence) - len(kept.blocks))
            return Placement(kept.prompt, blocks, phases_of(todo, kept.tokens, kept.last))
        prompt = self._prompts.get(sequence.group)
        if prompt is None:
            tokens = sequence.segments[0].tokens
            prompt = self._prompts[sequence.group] = CachedPrompt(tokens, self._pool.take(blocks_for(len(tokens) - 1)))
        prompt.users += 1
        return Placement(prompt, self._pool.take(_own_blocks(sequence)), phases_of(todo))

    def _go_on(self, sequences: Sequence[DecodedSequence]) -> None:
        """Launch the passes that these sequences are at; they decode when those are done."""
        chunks = [chunk for sequence in sequences for chunk in self._chunks(self._placed[sequence])]
        side = self._pool.passes
        if self._launched:  # which may still write to blocks that were given back since
            side.wait_event(self._launched[-1].done)
        with torch.cuda.stream(side):
            for first_chunk in range(0, len(chunks), _CHUNKS[-1]):
                self._pass_over(chunks[first_chunk : first_chunk + _CHUNKS[-1]])
            self._passing.append(LaunchedPass(_recorded_event(side), list(sequences)))

    def _chunks(self, placed: Placement) -> Iterator[PromptChunk]:
        """Of the pass that a sequence is at, if it is at one and nobody else in its group has launched it."""
        prompt, one = placed.prompt, placed.phases[0]
        if not isinstance(one, Pass):
            return
        placed.phases.popleft()
        is_prompt = one.position == 0
        if is_prompt and prompt.is_launched:
            return
        prompt.is_launched = True
        blocks = prompt.blocks if is_prompt else prompt.blocks + placed.blocks
        for start in range(0, len(one.tokens), CHUNK):
            yield PromptChunk(one.tokens[start : start + CHUNK], one.position + start, prompt.cached, blocks)

    def _pass_over(self, chunks: Sequence[PromptChunk]) -> None:
        count = next(count for count in _CHUNKS if count >= len(chunks))
        one = self._ready.prompts[count]
        tokens, places = torch.zeros(count, CHUNK, dtype=torch.int64), torch.zeros(count, 3, dtype=torch.int32)
        table = torch.zeros(count, self._pool.table_columns, dtype=torch.int32)
        for place, chunk in enumerate(chunks):
            tokens[place, : len(chunk.tokens)] = torch.tensor(chunk.tokens)
            places[place] = torch.tensor([chunk.position, len(chunk.tokens), chunk.prompt])
            table[place, : len(chunk.blocks)] = torch.tensor(chunk.blocks)
        one.tokens.copy_(tokens.flatten().pin_memory(), non_blocking=True)
        one.chunks.copy_(places.pin_memory(), non_blocking=True)
        one.table.copy_(table.pin_memory(), non_blocking=True)
        self._ready.prompt_graphs[count].replay()

    def _begin_steps(self) -> None:
        """Let those decode whose passes are done, and that have a row or find one: without waiting for a pass, unless
        there is nothing else to do."""
        beginning: list[DecodedSequence] = []
        while self._passing and (self._is_idle or self._passing[0].done.query()):  # type: ignore[no-untyped-call]
            passing = self._passing.popleft()
            self._pool.steps.wait_event(passing.done)
            for sequence in passing.sequences:
                if sequence in self._placed:
                    (self._without_row if self._placed[sequence].row is None else beginning).append(sequence)
        while self._without_row and self._free_rows:
            sequence = self._without_row.popleft()
            self._placed[sequence].row = self._free_rows.pop()
            beginning.append(sequence)
        if beginning:
            self._write([self._row_input(sequence) for sequence in beginning])
            self._decoding.update(beginning)

    @property
    def _is_idle(self) -> bool:
        return not self._decoding and not self._without_row

    def _row_input(self, sequence: DecodedSequence) -> RowInput:
        placed, request = self._placed[sequence], sequence.request
        steps = placed.phases[0]
        assert isinstance(steps, Steps)
        assert placed.row is not None
        placed.forced = len(steps.forced)
        blocks = placed.prompt.blocks + placed.blocks
        seen = sequence.seen if steps.samples else ()
        return RowInput(placed.row, steps, placed.prompt.cached, blocks, request.seed, request.sampling, seen)

    def _write(self, rows: Sequence[RowInput]) -> None:
        """Let rows begin."""
        table = torch.zeros(len(rows), self._pool.table_columns, dtype=torch.int32)
        for place, one in enumerate(rows):
            table[place, : len(one.blocks)] = torch.tensor(one.blocks)
        with torch.cuda.stream(self._pool.steps):
            index = self._sent(torch.tensor([one.row for one in rows]))
            self._state.state.index_copy_(0, index, self._sent(torch.tensor([one.state for one in rows])))
            self._state.table.index_copy_(0, index, self._sent(table))
            for one in rows:
                if one.steps.forced:
                    forced = torch.tensor(one.steps.forced, dtype=torch.int32)
                    self._state.forced[one.row, : len(forced)] = self._sent(forced)
                if one.seen:
                    assert self._state.seen is not None
                    seen_V = self._state.seen[one.row].zero_()
                    seen_V.index_fill_(0, self._sent(torch.tensor(list(one.seen))), 1)

    def _sent(self, values: torch.Tensor) -> torch.Tensor:
        return values.pin_memory().to(self.decoder.device, non_blocking=True)

    # -- stepping ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Launch a step, and take in what the one before it chose."""
        self._begin_steps()
        is_launched = bool(self._decoding)
        if is_launched:
            self._launch()
        if self._launched and (len(self._launched) == 2 or not is_launched):
            self._take(self._launched.popleft())

    def _launch(self) -> None:
        said = self._said_here[self._steps % 2]
        self._steps += 1
        with torch.cuda.stream(self._pool.steps):
            self._step_graph.replay()
            said.copy_(self._said, non_blocking=True)
            done = _recorded_event(self._pool.steps)
        placed = [(self._placed[sequence].row, sequence) for sequence in self.live if sequence in self._decoding]
        self._launched.append(
            LaunchedStep(said, done, [(row, sequence) for row, sequence in placed if row is not None])
        )

    @property
    def _step_graph(self) -> torch.cuda.CUDAGraph:
        penalised = self._ready.penalised_graph
        if penalised is not None and any(sequence.is_penalised for sequence in self._decoding):
            return penalised
        return self._ready.step_graph

    def _take(self, launched: LaunchedStep) -> None:
        launched.done.synchronize()
        tokens, log_prob_bits, reasons = launched.said
        chosen, log_probs, ends = tokens.tolist(), log_prob_bits.view(torch.float32).tolist(), reasons.tolist()
        going_on = []
        for row, sequence in launched.sequences:
            placed = self._placed.get(sequence)
            if placed is None or sequence.finish_reason is not None or ends[row] < 0:
                continue
            if placed.forced:
                placed.forced -= 1
            else:
                sequence.choose(chosen[row], log_probs[row], is_end=chosen[row] in self._end_ids)
            if ends[row] > 0:
                self._decoding.discard(sequence)
                placed.phases.popleft()
                if placed.phases:
                    going_on.append(sequence)
        if going_on:
            self._go_on(going_on)

    # -- ending --------------------------------------------------------------------------------------

    def kept(self, place: int) -> KeptBlocks:
        """What the cache has of a sequence that has ended; `remove` leaves it there."""
        sequence = self.live[place]
        placed = self._placed[sequence]
        before = sum(len(segment.tokens) for segment in sequence.segments)
        kept = KeptBlocks(placed.prompt, placed.blocks, before + len(sequence.sampled) - 1, sequence.sampled[-1])
        placed.blocks = []
        placed.prompt.users += 1
        return kept

    def drop(self, kept: object) -> None:
        """Free what was kept."""
        assert isinstance(kept, KeptBlocks)
        self._pool.give_back(kept.blocks)
        kept.prompt.users -= 1

    def remove(self, places: Iterable[int]) -> None:
        """Free the rows of sequences, by their place in `live`."""
        gone = [self.live[place] for place in places]
        if not gone:
            return
        rows = []
        for sequence in gone:
            placed = self._placed.pop(sequence)
            if placed.row is None:
                with suppress(ValueError):  # its pass may be under way
                    self._without_row.remove(sequence)
            else:
                self._free_rows.append(placed.row)
            if sequence in self._decoding:  # the device goes on with it
                self._decoding.discard(sequence)
                rows.append(placed.row)
            self._pool.give_back(placed.blocks)
            placed.prompt.users -= 1
        if rows:
            with torch.cuda.stream(self._pool.steps):
                self._state.state[self._sent(torch.tensor(rows)), kernels.POSITION.value] = -1
        self.live = [sequence for sequence in self.live if sequence in self._placed]

    def forget_prompts(self, is_awaited: Callable[[Group], bool]) -> None:
        """Of groups that nobody uses and nobody waits for."""
        for group in [one for one, prompt in self._prompts.items() if not prompt.users and not is_awaited(one)]:
            self._pool.give_back(self._prompts.pop(group).blocks)

    # -- scoring -------------------------------------------------------------------------------------

    def score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Of each sequence's tokens but the first: the log-probability at temperature 1, by steps whose choices are
        given. What is decoded waits meanwhile, and its rows are put back."""
        scored: dict[int, torch.Tensor] = {}
        for batch in self._batches(sequences):
            scored |= zip(batch, self._score([sequences[place] for place in batch]), strict=True)
        return [scored.get(place, torch.empty(0)) for place in range(len(sequences))]

    def _batches(self, sequences: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Places of sequences that are scored together: as many as there are rows and blocks for."""
        batch: list[int] = []
        blocks = 0
        for place, tokens in enumerate(sequences):
            own = blocks_for(len(tokens))
            if own > len(self._pool.for_scoring):
                raise SettingError(
                    f"a sequence of {len(tokens)} tokens cannot be scored: there is room for "
                    f"{len(self._pool.for_scoring) * BLOCK}"
                )
            if batch and (blocks + own > len(self._pool.for_scoring) or len(batch) == self._state.count):
                yield batch
                batch, blocks = [], 0
            if len(tokens) > 1:
                batch.append(place)
                blocks += own
        if batch:
            yield batch

    def _score(self, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        self.prepare()
        blocks = iter(self._pool.for_scoring)
        inputs = [
            RowInput(
                row, Steps(tokens[0], 0, tuple(tokens[1:]), samples=False), 0,
                [next(blocks) for _ in range(blocks_for(len(tokens)))], 0, Sampling(max_new_tokens=1),
            )
            for row, tokens in enumerate(sequences)
        ]  # fmt: skip
        found = []
        with torch.cuda.stream(self._pool.steps):
            with self._rows_set_aside():
                self._write(inputs)
                for _ in range(max(map(len, sequences)) - 1):
                    self._ready.step_graph.replay()
                    found.append(self._state.log_probs.clone())
            log_probs_BT = torch.stack(found, 1).cpu()
        return [log_probs_BT[row, : len(tokens) - 1].clone() for row, tokens in enumerate(sequences)]


def _own_blocks(sequence: DecodedSequence) -> int:
    """For the last token of its first segment and all that may come after it but the very last, which stays out."""
    return blocks_for(sequence.longest - len(sequence.segments[0].tokens))


def _kept(sequence: DecodedSequence) -> KeptBlocks:
    assert isinstance(sequence.cached, KeptBlocks)
    return sequence.cached


def _recorded_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
