"""Layers on top of each other, as one: compression inside TLS."""

from penstock.protocol.layer import Layer

__all__ = ["LayerStack"]


class LayerStack:
    """A `Layer` made of any number: the one that was pushed last is next to the protocol."""

    __slots__ = ("_layers",)

    def __init__(self) -> None:
        self._layers: list[Layer] = []

    def __bool__(self) -> bool:
        return bool(self._layers)

    def push(self, layer: Layer) -> None:
        """Puts a layer between the others and the protocol."""
        self._layers.append(layer)

    def clear(self) -> None:
        """Goes back to the bare transport."""
        self._layers.clear()

    def encode(self, data: bytes) -> bytes:
        """What is to be sent for `data`."""
        for layer in reversed(self._layers):
            data = layer.encode(data)
        return data

    def receive(self, data: bytes) -> None:
        """Takes what came from the peer."""
        self._layers[0].receive(data)

    def read(self) -> bytes:
        """The next piece of plain bytes; empty when more has to be received first."""
        return self._read(len(self._layers) - 1)

    def _read(self, at: int) -> bytes:
        layer = self._layers[at]
        while not (piece := layer.read()):
            if at == 0 or not (below := self._read(at - 1)):
                return b""
            layer.receive(below)
        return piece
