"""How fast state gets from slot to slot: streams that share cores and links."""

import numpy as np
import numpy.typing as npt

from keyshift.simulator.model import Cluster, Floats

Slots = npt.NDArray[np.int32]


class Network:
    """A stream from slot to slot takes an equal share of whatever it uses: a core of its slots, the cores and the links
    of their hosts. What it needs most of its share decides how fast it is.

    So a stream that ends never slows another one down, as it may under max-min fairness, and more bandwidth is never
    slower.
    """

    def __init__(self, cluster: Cluster, slots: int) -> None:
        hosts = -(-slots // cluster.host_slots)
        self._links = np.concatenate([np.full(2 * hosts, cluster.link_bytes_per_s), [np.inf]])  # the last one is none
        self._cores = np.concatenate([np.full(hosts, float(cluster.cores)), np.ones(slots)])
        self._hosts, self._host_slots = hosts, cluster.host_slots

    def deliver(self, sources: Slots, destinations: Slots, sizes: Floats, core_s: Floats) -> tuple[Floats, Floats]:
        """Streams that begin together: the bytes of each, and the core seconds that it takes, half of them on each
        side; all of shape (streams,).

        Returns moments in seconds since the beginning, shape (n,), ascending from 0, and which part of each stream is
        there by then, shape (n, streams); between two moments streams are evenly fast. Complexity: O(streams²) at the
        worst.
        """
        here, there = sources // self._host_slots, destinations // self._host_slots
        none, local = len(self._links) - 1, here == there
        links = np.stack([np.where(local, none, here), np.where(local, none, self._hosts + there)], 1)
        cores = np.stack([here, there, self._hosts + sources, self._hosts + destinations], 1)
        left, now = np.ones(len(sizes)), 0.0
        moments, delivered = [0.0], [np.zeros(len(sizes))]
        while (active := left > 0).any():
            takes_s = np.zeros(active.sum())  # each stream alone with its shares
            for uses, capacity, work in ((links, self._links, sizes), (cores, self._cores, core_s / 2)):
                streams = np.bincount(uses[active].ravel(), minlength=len(capacity))
                share = (capacity / np.maximum(streams, 1))[uses[active]].min(axis=1)
                takes_s = np.maximum(takes_s, work[active] / share)
            needs = left[active] * takes_s
            step = needs.min()
            part = step / np.maximum(takes_s, step or 1.0)
            left[active] = np.where(needs <= step * (1 + 1e-9), 0.0, left[active] - part)
            now += step
            moments.append(now)
            delivered.append(1.0 - left)
        return np.array(moments), np.array(delivered)
