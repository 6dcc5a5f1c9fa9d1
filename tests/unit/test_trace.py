from bench.legs import LEGS, moments
from keyshift import trace


def test_moments_of_a_frame_are_brought_together_from_the_files_of_all_processes(tmp_path):
    folder = str(tmp_path)
    generator = trace.Trace(folder, "generator", ["router", "frame_us", "sent_us"])
    router = trace.Trace(folder, "router", ["router", "offset", "frame_us", "came_us", "went_us"])
    slots = [trace.Trace(folder, "slot", ["slot", "router", "offset", "came_us", "went_us"]) for _ in range(2)]
    collector = trace.Trace(folder, "collector", ["slot", "router", "offset", "arrived_us"])
    for frame in (100, 200):
        generator.add(0, frame, frame + 1)
        router.add(0, frame // 100, frame, frame + 3, frame + 6)
    for slot, file in enumerate(slots):
        file.add(slot, 0, 1, 110, 115)
        collector.add(slot, 0, 1, 128)
    passed = moments(folder)  # frame 2 has not come out, so it has no legs
    assert sorted(passed["slot"]) == [0, 1]
    took = {leg: (passed[end] - passed[begin]).tolist() for leg, (begin, end) in LEGS.items()}
    wanted = {"due -> sent": 1, "sent -> router": 2, "router": 3, "router -> slot": 4, "slot": 5, "slot -> Kafka": 13}
    assert took == {leg: [us, us] for leg, us in (wanted | {"due -> in the log": 28}).items()}
