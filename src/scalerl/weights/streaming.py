"""Weights that arrive piece by piece, and are written into the live weights as they come: no second
copy of them is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from scalerl.errors import PipelineError
from scalerl.weights.interface import Layout

#: Bytes of a piece, at most: what is staged where a tensor cannot be written in place.
PIECE_BYTES = 32 << 20
#: Bytes up to which tensors that follow each other travel as one piece: a collective of a few bytes
#: takes as long as one of a megabyte.
GATHERED_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of the flat weights: of one large tensor, or of several whole small ones."""

    start: int
    stop: int
    #: First and last tensor in it, by their numbers in the layout.
    first: int
    last: int
    #: Elements of that tensor before it.
    offset: int = 0

    def __len__(self) -> int:
        return self.stop - self.start


def pieces_of(layout: Layout) -> list[Piece]:
    """The pieces in which a layout travels, in order; both ends compute the same.

    >>> layout = Layout(("a", "b", "c"), ((3,), (2, 2), (9 << 20,)), torch.float32)
    >>> [(p.first, p.last, len(p), p.offset) for p in pieces_of(layout)]
    [(0, 1, 7, 0), (2, 2, 8388608, 0), (2, 2, 1048576, 8388608)]
    """
    size, found, at = layout.dtype.itemsize, list[Piece](), 0
    for i, shape in enumerate(layout.shapes):
        end = at + torch.Size(shape).numel()
        last = found[-1] if found else None
        if last is not None and (end - last.start) * size <= GATHERED_BYTES:
            found[-1] = Piece(last.start, end, last.first, i)
        else:
            step = PIECE_BYTES // size
            starts = range(at, max(end, at + 1), step)
            found += [Piece(p, min(p + step, end), i, i, p - at) for p in starts]
        at = end
    return found


class StreamedWeights(Mapping[str, Tensor]):
    """One set of weights that is just arriving: to be read once, in order.

    receive   fills a contiguous tensor with the next elements; raises where the sender is gone
    """

    def __init__(self, layout: Layout, device: str, receive: Callable[[Tensor], None]) -> None:
        self.layout, self.device, self.receive = layout, device, receive
        self._rest = iter(pieces_of(layout))
        self._tensors = self._read()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes by name, which are known before anything has arrived."""
        return dict(zip(self.layout.names, self.layout.shapes, strict=True))

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)

    def __contains__(self, name: object) -> bool:
        return name in self.layout.names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.layout.names:
            raise KeyError(name)
        for found, tensor in self._tensors:
            if found == name:
                return tensor
        raise PipelineError(f"{name} was read before: weights that arrive are read once, in order")

    def _read(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor as a whole, in memory of its own."""
        names, shapes = self.layout.names, self.layout.shapes
        whole = self._empty(0)
        for piece in self._rest:
            if piece.first != piece.last:
                for i, part in self._small_tensors(piece):
                    yield names[i], part
                continue
            if piece.offset == 0:
                whole = self._empty(torch.Size(shapes[piece.first]).numel())
            self.receive(whole[piece.offset : piece.offset + len(piece)])
            if piece.offset + len(piece) == len(whole):
                yield names[piece.first], whole.view(shapes[piece.first])

    @torch.no_grad()
    def write_into(self, own: Mapping[str, Tensor]) -> None:
        """Write the weights into these tensors, of the same names and shapes."""
        if not all(tensor.is_contiguous() for tensor in own.values()):
            for name, tensor in self.items():
                own[name].copy_(tensor)
            return
        for piece in self._rest:
            live = own[self.layout.names[piece.first]]
            place = live.detach().view(-1)[piece.offset : piece.offset + len(piece)]
            if piece.first != piece.last:
                for i, part in self._small_tensors(piece):
                    own[self.layout.names[i]].copy_(part)
            elif place.dtype == self.layout.dtype and place.device == torch.device(self.device):
                self.receive(place)
                # Decoders that keep fused copies of weights see only changes that are counted.
                torch.autograd.graph.increment_version(live)
            else:
                staged = self._empty(len(piece))
                self.receive(staged)
                live.view(-1)[piece.offset : piece.offset + len(piece)].copy_(staged)

    def finish(self) -> None:
        """Receive what was not read, so that the other members of a broadcast do not wait."""
        for piece in self._rest:
            self.receive(self._empty(len(piece)))

    def _small_tensors(self, piece: Piece) -> Iterator[tuple[int, Tensor]]:
        """The tensors of a piece with several, each with its number in the layout."""
        staged, at = self._empty(len(piece)), 0
        self.receive(staged)
        for i in range(piece.first, piece.last + 1):
            n = torch.Size(self.layout.shapes[i]).numel()
            yield i, staged[at : at + n].view(self.layout.shapes[i])
            at += n

    def _empty(self, size: int) -> Tensor:
        return torch.empty(size, dtype=self.layout.dtype, device=self.device)
