"""How fast state gets from slot to slot: streams that share cores and links."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from keyshift.forecast.model import Cluster, Costs, Floats, Ints
from keyshift.model.keys import Move


class Network:
    """A stream from slot to slot takes an equal share of whatever it uses: a core of its slots, the cores and the links
    of their hosts. What it needs most of its share decides how fast it is.

    So a stream that ends never slows another one down, as it may under max-min fairness, and more bandwidth is never
    slower.
    """

    def __init__(self, cluster: Cluster, slots: int, costs: Costs) -> None:
        self._costs = costs
        hosts = -(-slots // cluster.host_slots)
        self._links = np.concatenate([np.full(2 * hosts, cluster.link_bytes_per_s), [np.inf]])  # the last one is none
        self._cores = np.concatenate([np.full(hosts, float(cluster.cores)), np.ones(slots)])
        self._hosts, self._host_slots = hosts, cluster.host_slots

    def ends_s(self, moves: Sequence[Move], sizes: Floats, asked: Floats | None = None) -> Floats:
        """Compute when each unit is in place, in seconds from when all streams begin, shape (moves,).

        A stream from slot to slot sends one unit after the other, as they come; or what was ``asked`` for last first.
        ``sizes``: bytes of each unit. Half of the core seconds that it costs are on each side.
        """
        streams: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for place, move in enumerate(moves):
            streams[move.source, move.destination].append(place)
        core_s = self._costs.unit_s + self._costs.byte_s * sizes
        core_s[[places[0] for places in streams.values()]] += self._costs.stream_s
        part, ends = np.empty(len(moves)), np.empty(len(moves))
        sources, destinations = np.array(list(streams)).T
        total = [np.array([each[places].sum() for places in streams.values()]) for each in (sizes, core_s)]
        moments, delivered = self.deliver(sources, destinations, *total)
        for number, places in enumerate(streams.values()):
            last = int(np.argmax(delivered[:, number] >= 1.0))
            curve = delivered[: last + 1, number], moments[: last + 1]
            part[places] = core_s[places] / (core_s[places].sum() or 1.0)
            if asked is None:
                ends[places] = np.interp(np.cumsum(part[places]), *curve)
                continue
            now, sent, left = 0.0, 0.0, list(places)
            while left:
                wanted = [place for place in left if asked[place] <= now]
                place = max(wanted, key=asked.__getitem__) if wanted else left[0]
                left.remove(place)
                sent += part[place]
                ends[place] = now = float(np.interp(sent, *curve))
        return ends

    def deliver(self, sources: Ints, destinations: Ints, sizes: Floats, core_s: Floats) -> tuple[Floats, Floats]:
        """Streams that begin together: bytes and core seconds of each, all of shape (streams,).

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
