"""Parked turns: the next turn reads only what is new, and everything else is as if nothing were
parked."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_local_engine import GREEDY, VOCABULARY, finish_all, model_of, prompts, rest, steps

from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Request, Sampling
from scalerl.engine.local import LocalEngine
from scalerl.models.cpu.c_decode import CDecoder
from scalerl.models.cpu.library import library
from scalerl.models.rows import Compaction

DECODERS = pytest.mark.parametrize(
    "name", ["llama", "llama by torch", "gpt2", "mixtral"], indirect=True
)


@pytest.fixture
def name(request, monkeypatch):
    """Of a model; one of them twice, the second time without the decoder in C."""
    if request.param.endswith(" by torch"):
        monkeypatch.setenv("SCALERL_CPU", "torch")
    return request.param.removesuffix(" by torch")


def decoder_of(model, rows=8, columns=96):
    return LocalEngine(model, slots=rows, validation_slots=0, columns=columns).decoder


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1]


def close(found_BV, expected_BV):
    """To the tolerance of log-probs elsewhere."""
    found, expected = (torch.log_softmax(each, -1) for each in (found_BV, expected_BV))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


# -- decoders -------------------------------------------------------------------------------------


@DECODERS
def test_an_extended_row_equals_a_fresh_prefill_whatever_the_lengths(name, monkeypatch):
    """Rows of other lengths at once, extended by other numbers of tokens, then decoded."""
    monkeypatch.setattr("scalerl.models.cpu.decode.QUERIES", 8)
    model = model_of(name)
    decoder = decoder_of(model)
    rng = np.random.default_rng(3)
    begun = prompts(4, seed=5)
    with torch.inference_mode():
        decoder.prefill(begun, range(4))
        texts = [list(p) for p in begun]
        for _ in range(3):
            token_B = torch.tensor(rng.integers(0, VOCABULARY, 4))
            decoder.decode(token_B)
            texts = [[*t, token] for t, token in zip(texts, token_B.tolist(), strict=True)]
        numbers = [decoder.park(row) for row in range(4)]
        decoder.drop_rows(Compaction.from_mask(np.ones(4, dtype=bool)))
        more = [tuple(rng.integers(0, VOCABULARY, n).tolist()) for n in (1, 30, 4, 17)]
        found = decoder.extend([numbers[i] for i in (2, 0, 3, 1)], [more[i] for i in (2, 0, 3, 1)])
        texts = [[*texts[i], *more[i]] for i in (2, 0, 3, 1)]
        expected = torch.stack([logits_of(model, t) for t in texts])
        close(found, expected)
        token_B = torch.tensor([5, 6, 7, 8])
        found = decoder.decode(token_B)
        texts = [[*t, token] for t, token in zip(texts, token_B.tolist(), strict=True)]
        expected = torch.stack([logits_of(model, t) for t in texts])
        close(found, expected)


@DECODERS
def test_the_neighbours_of_an_extended_row_keep_every_bit(name):
    model = model_of(name)
    plain, other = decoder_of(model), decoder_of(model)
    begun = [*prompts(3, seed=6), (1, 2)]
    gone = Compaction.from_mask(np.array([False, False, False, True]))
    with torch.inference_mode():
        for decoder in (plain, other):
            decoder.prefill(begun, range(4))
            decoder.decode(torch.tensor([1, 2, 3, 4]))
        number = other.park(3)
        for decoder in (plain, other):
            decoder.drop_rows(gone)
        assert torch.equal(*(d.decode(torch.tensor([5, 6, 7])) for d in (plain, other)))
        plain.prefill([(1, 2, 4, 8, 9)], [0])
        other.extend([number], [(8, 9)])
        found, expected = (d.decode(torch.tensor([7, 8, 9, 5])) for d in (other, plain))
    assert torch.equal(found[:3], expected[:3])
    close(found[3:], expected[3:])


@pytest.mark.skipif(library() is None, reason="needs a C compiler")
@pytest.mark.parametrize("threads", [1, 3])
def test_an_extension_in_c_is_as_many_decode_steps_bit_for_bit(threads):
    """Whatever the number of threads, and across tiles of rows."""
    model = model_of("qwen2")
    rng = np.random.default_rng(0)
    begun = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]
    more_TB = torch.tensor(rng.integers(0, VOCABULARY, (150, 3)))
    extended, stepped = (CDecoder.from_model(model, 4, 256) for _ in range(2))
    extended.threads = threads
    with torch.inference_mode():
        for decoder in (extended, stepped):
            decoder.prefill(begun, range(3))
            decoder.decode(torch.tensor([1, 2, 3]))
        numbers = [extended.park(row) for row in range(3)]
        extended.drop_rows(Compaction.from_mask(np.ones(3, dtype=bool)))
        found = extended.extend(numbers, [tuple(row) for row in more_TB.T.tolist()])
        for token_B in more_TB:
            expected = stepped.decode(token_B.contiguous())
    assert torch.equal(found, expected)


# -- engines --------------------------------------------------------------------------------------


def first_turn(name, prompt, *, rows=1, limit=5, how=GREEDY):
    seeds = {row: 100 * row + 1 for row in range(rows)}
    return Request(name, prompt, Limit(limit), seeds, how, one_by_one=True)


def next_turn(before, row, turn, observation, *, limit=5):
    """The request behind a turn and what the environment replied to it."""
    ids = (*before.prompt_token_ids, *turn.token_ids.tolist(), *observation)
    name = f"{before.id.partition('#')[0]}#{row}#{len(ids)}"
    seeds = {row: before.seeds[row] + len(ids)}
    return Request(name, ids, Limit(limit), seeds, before.sampling, one_by_one=True,
                   continues=before.id)  # fmt: skip


def played(engine, episodes, turns=4, lane="train", how=GREEDY):
    """All turns of episodes with replies of other lengths, by (episode, turn); and the tokens
    read."""
    waiting = {f"e{i}": first_turn(f"e{i}", p, how=how) for i, p in enumerate(prompts(episodes, 2))}
    engine.submit(waiting.values(), lane)
    asked = {request.id: (request, 0) for request in waiting.values()}
    found, read = {}, 0
    while len(found) < episodes * turns:
        step = engine.step()
        read += step.read_tokens
        for result in step.written:
            request, turn = asked[result.request]
            found[request.id.partition("#")[0], turn] = result.turn
            if turn + 1 < turns:
                reply = tuple(range(1, 2 + (len(request.prompt_token_ids) + turn) % 7))
                request = next_turn(request, result.row, result.turn, reply)
                asked[request.id] = (request, turn + 1)
                engine.submit([request], lane)
    return found, read


def alike(found, expected):
    assert found.keys() == expected.keys()
    for key, turn in expected.items():
        assert found[key].token_ids.tolist() == turn.token_ids.tolist(), key
        np.testing.assert_allclose(found[key].logprobs, turn.logprobs, atol=2e-5)


def passes_of(engine, monkeypatch):
    """(kind, rows) of every forward pass from here on."""
    seen = []

    def count(kind, call):
        def counted(*given):
            out = call(*given)
            seen.append((kind, len(out)))
            return out

        monkeypatch.setattr(engine.decoder, kind, counted)

    for kind in ("prefill", "decode", "extend"):
        count(kind, getattr(engine.decoder, kind))
    return seen


@DECODERS
@pytest.mark.parametrize("how", [GREEDY, Sampling(temperature=0.8)], ids=["greedy", "sampled"])
def test_episodes_are_the_same_with_and_without_parked_turns(name, how):
    model = model_of(name)
    plain = LocalEngine(model, slots=4, columns=96, park_turns=False)
    expected, everything = played(plain, 6, how=how)
    parks = LocalEngine(model, slots=4, columns=96)
    found, new = played(parks, 6, how=how)
    alike(found, expected)
    assert 2.5 * new < everything
    # Everything but the prompts is read, or was read when it was written, once.
    once = sum(len(turn) for turn in found.values())
    assert new < once + 6 * 3 * 7


@DECODERS
def test_a_long_reply_is_read_in_one_pass_and_nothing_else_is(name, monkeypatch):
    engine = LocalEngine(model_of(name), slots=2, columns=220)
    before = first_turn("e", (1, 2, 3))
    engine.submit([before])
    turn = finish_all(engine)["e"]
    seen = passes_of(engine, monkeypatch)
    reply = tuple(np.random.default_rng(0).integers(0, VOCABULARY, 200).tolist())
    engine.submit([next_turn(before, 0, turn, reply, limit=3)])
    read = engine.step().read_tokens
    assert read == 1 + 200  # the last token of the turn was sampled and not read
    rest(engine)
    assert seen == [("extend", 1), ("decode", 1), ("decode", 1)]


@DECODERS
def test_replies_to_the_episodes_of_a_group_are_read_together(name, monkeypatch):
    """Their first turns share a prompt, and end at once or not."""
    model = model_of(name)
    engine = LocalEngine(model, slots=4, columns=96)
    group = first_turn("g", (1, 2, 3), rows=4, how=Sampling())
    engine.submit([group])
    turns = {row: turn for (_, row), turn in finish_all(engine).items()}
    seen = passes_of(engine, monkeypatch)
    asked = [next_turn(group, row, turns[row], range(1, 3 + 5 * row)) for row in range(4)]
    engine.submit(asked)
    found = finish_all(engine)
    assert [each for each in seen if each[0] != "decode"] == [("extend", 4)]
    plain = LocalEngine(model, slots=4, columns=96)
    plain.submit(asked)  # of turns that it has not written
    alike(found, finish_all(plain))


@DECODERS
def test_a_parked_turn_with_other_tokens_is_not_used(name, monkeypatch):
    model = model_of(name)
    engine = LocalEngine(model, slots=2, columns=96)
    before = first_turn("e", (1, 2, 3, 4))
    engine.submit([before])
    turn = finish_all(engine)["e"]
    seen = passes_of(engine, monkeypatch)
    rewritten = Request("e#0#1", (1, 2, 9, 4, *turn.token_ids.tolist(), 7), Limit(4), {0: 3},
                        GREEDY, one_by_one=True, continues="e")  # fmt: skip
    engine.submit([rewritten])
    assert engine.step().read_tokens == len(rewritten.prompt_token_ids)
    found = finish_all(engine)
    assert seen[0] == ("prefill", 1)
    plain = LocalEngine(model, slots=2, columns=96)
    plain.submit([rewritten])
    alike(found, finish_all(plain))
    assert len(engine.parking) == 1, "the row that was not used is free again"


@pytest.mark.parametrize("shorter", [0, 1])
def test_a_request_without_a_token_more_than_the_parked_ones_is_read_from_its_beginning(shorter):
    model = model_of("llama")
    engine = LocalEngine(model, slots=2, columns=96)
    before = first_turn("e", (1, 2, 3, 4))
    engine.submit([before])
    turn = finish_all(engine)["e"]
    ids = (*before.prompt_token_ids, *turn.token_ids.tolist()[: -1 - shorter])
    engine.submit([Request("e#0#1", ids, Limit(4), {0: 3}, GREEDY, continues="e")])
    assert engine.step().read_tokens == len(ids)


@DECODERS
def test_parked_turns_give_way_to_rollouts_the_oldest_first(name):
    """As many run at once as without them, and what was dropped is read again."""
    model = model_of(name)
    engine = LocalEngine(model, slots=3, validation_slots=1, columns=96)
    firsts = [first_turn(f"e{i}", p, limit=3 + i) for i, p in enumerate(prompts(3, 4))]
    engine.submit(firsts)
    turns = finish_all(engine)
    assert [key[0] for key in engine.parking.idle] == ["e0", "e1", "e2"]
    others = [Request(f"o{i}", (5, 6), Limit(30), {0: i}, GREEDY) for i in range(2)]
    engine.submit(others)
    engine.step()
    assert engine.health().running == 2
    assert [key[0] for key in engine.parking.idle] == ["e1", "e2"], "four places in all"
    engine.submit([Request("o2", (5, 6), Limit(30), {0: 2}, GREEDY)])
    steps(engine, 9)
    assert engine.health().running == 3
    assert [key[0] for key in engine.parking.idle] == ["e2"]
    asked = [next_turn(firsts[i], 0, turns[f"e{i}"], (7, 8)) for i in range(3)]
    engine.submit(asked)
    found = {key[0]: turn for key, turn in rest(engine)["train"].items()}
    plain = LocalEngine(model, slots=3, columns=96, park_turns=False)
    plain.submit([*others, Request("o2", (5, 6), Limit(30), {0: 2}, GREEDY), *asked])
    alike(found, finish_all(plain))


def test_a_turn_that_a_waiting_request_continues_is_not_dropped_for_another():
    """Twice as many episodes as places: half of them find their turn."""
    engine = LocalEngine(model_of("llama"), slots=4, validation_slots=4, columns=96)
    _, new = played(engine, 16)
    plain = LocalEngine(model_of("llama"), slots=4, columns=96, park_turns=False)
    _, everything = played(plain, 16)
    assert new < 0.8 * everything


def test_many_turns_that_end_together_in_a_full_engine_leave_no_place_lost():
    engine = LocalEngine(model_of("llama"), slots=4, validation_slots=1, columns=96)
    for i in range(5):
        engine.submit([first_turn(f"g{i}", (1, 2, i), rows=4)])
        finish_all(engine)
        assert len(engine.parking) <= 5
    engine.submit([Request("o", (5, 6), Limit(9), {row: row for row in range(4)})])
    assert len(finish_all(engine)) == 4
    places = engine.decoder.free
    assert sorted([*places, *(r.values[0] for r in engine.decoder.parked.values())]) == list(
        range(5)
    )


@DECODERS
def test_a_turn_that_ends_at_once_takes_no_place_of_turns_that_start_with_it(name):
    model = model_of(name)
    engine = LocalEngine(model, slots=4, validation_slots=0, columns=96)
    first = first_turn("e", (1, 2, 3))
    engine.submit([first])
    turn = finish_all(engine)["e"]
    running = Request("t", (4, 5), Limit(20), {0: 9}, GREEDY)
    engine.submit([running])
    before = steps(engine, 2)["train"]
    asked = [next_turn(first, 0, turn, (7, 8)), first_turn("c", (9, 9), limit=1),
             first_turn("d", (8, 6, 4))]  # fmt: skip
    engine.submit(asked)
    begun = steps(engine, 1)["train"]
    asked.append(next_turn(asked[1], 0, begun["c", 0], (7, 8, 9)))
    engine.submit(asked[-1:])
    found = {key[0]: turn for key, turn in (before | begun | rest(engine)["train"]).items()}
    plain = LocalEngine(model, slots=4, columns=96, park_turns=False)
    plain.submit([running, *asked])
    alike(found, finish_all(plain))


@DECODERS
@pytest.mark.parametrize("after", [0, 2])
def test_a_validation_keeps_the_parked_turns_of_training_while_there_is_room(name, after):
    model = model_of(name)
    engine = LocalEngine(model, slots=3, validation_slots=3, columns=96)
    before = first_turn("e", (1, 2, 3))
    running = Request("t", (4, 5), Limit(25), {0: 9}, GREEDY)
    engine.submit([before, running])
    done = {}
    while "e" not in done:
        done |= {w.request: w.turn for w in engine.step().written}
    steps(engine, after)
    expected, _ = played(LocalEngine(model, slots=3, columns=96, park_turns=False), 2)
    found, _ = played(engine, 2, lane="validate")
    alike(found, expected)
    engine.submit([next_turn(before, 0, done["e"], (7, 8, 9))])
    read = 0
    while engine.health().busy:
        step = engine.step()
        read += step.read_tokens
        done |= {w.request: w.turn for w in step.written}
    assert read == 4
    plain = LocalEngine(model, slots=3, columns=96, park_turns=False)
    plain.submit([before, running])
    expected = finish_all(plain)
    plain.submit([next_turn(before, 0, expected["e"], (7, 8, 9))])
    alike(done, expected | finish_all(plain))


@DECODERS
def test_a_validation_that_needs_all_places_drops_the_parked_turns_of_training(name):
    model = model_of(name)
    engine = LocalEngine(model, slots=2, validation_slots=3, columns=96)
    firsts = [first_turn(f"e{i}", (1, 2, 3 + i)) for i in range(2)]
    engine.submit(firsts)
    turns = finish_all(engine)
    engine.submit([Request(f"t{i}", (4, 5), Limit(20), {0: 9 + i}, GREEDY) for i in range(2)])
    steps(engine, 2)
    engine.submit(
        [Request(f"v{i}", (6, 7), Limit(6), {0: i}, GREEDY) for i in range(3)], "validate"
    )
    while engine.health().lane == "validate":
        engine.step()
    assert not engine.parking.idle
    rest(engine)
    asked = [next_turn(firsts[i], 0, turns[f"e{i}"], (7, 8)) for i in range(2)]
    engine.submit(asked)
    plain = LocalEngine(model, slots=2, columns=96)
    plain.submit(asked)
    alike(finish_all(engine), finish_all(plain))


@DECODERS
def test_weights_that_change_between_turns_find_the_keys_and_values_of_the_old_ones(name):
    """As in flight: a replay reads the old keys and values with the new weights."""
    old, new = model_of(name, 0), model_of(name, 1)
    engine = LocalEngine(copy.deepcopy(old), slots=2, columns=96, version=5)
    before = first_turn("e", (1, 2, 3, 4))
    engine.submit([before])
    turn = finish_all(engine)["e"]
    engine.load(dict(new.named_parameters()), version=6)
    request = next_turn(before, 0, turn, (7, 8, 9))
    engine.submit([request])
    assert engine.step().read_tokens == 4
    written = finish_all(engine)[request.id]
    assert set(written.versions.tolist()) == {6}

    from transformers import DynamicCache

    cache, tokens, n = DynamicCache(), [], len(request.prompt_token_ids)
    ids = torch.tensor([request.prompt_token_ids])
    with torch.no_grad():
        old(ids[:, : n - 4], past_key_values=cache)
        logits = new(ids[:, n - 4 :], past_key_values=cache).logits[0, -1]
        for _ in range(5):
            tokens.append(int(logits.argmax()))
            logits = new(torch.tensor([[tokens[-1]]]), past_key_values=cache).logits[0, -1]
    assert written.token_ids.tolist() == tokens


@pytest.mark.parametrize(("lane", "version", "kept"), [
    ("train", 6, True), ("train", 4, False), ("validate", 6, False), ("validate", 5, True),
])  # fmt: skip
def test_a_validation_and_a_return_to_a_checkpoint_do_not_continue_other_weights(
    lane, version, kept
):
    model = model_of("llama")
    engine = LocalEngine(copy.deepcopy(model), slots=2, columns=96, version=5)
    engine.submit([first_turn("e", (1, 2, 3, 4))], lane)
    rest(engine)
    engine.load(dict(model.named_parameters()), version)
    assert len(engine.parking) == kept


@DECODERS
def test_abort_frees_what_a_waiting_request_continues(name):
    engine = LocalEngine(model_of(name), slots=1, validation_slots=2, columns=96)
    before = first_turn("e", (1, 2, 3, 4))
    engine.submit([before])
    turn = finish_all(engine)["e"]
    engine.submit([Request("o", (5, 6), Limit(20), {0: 2}, GREEDY)])
    steps(engine, 2)
    request = next_turn(before, 0, turn, (7, 8, 9))
    engine.submit([request])
    assert len(engine.parking.claimed) == 1
    engine.abort([request.id])
    assert len(engine.parking) == 0
    engine.submit([request])
    found = rest(engine)["train"]
    assert found[request.id, 0].finish == "length"


def test_single_turns_are_not_parked():
    engine = LocalEngine(model_of("llama"), slots=2, columns=96)
    engine.submit([Request("o", (5, 6), Limit(9), {0: 1, 1: 2})])
    finish_all(engine)
    assert len(engine.parking) == 0


@DECODERS
def test_random_episodes_are_written_as_if_each_turn_were_alone(name):
    """Both lanes, few places, turns of one token and more, requests that are dropped and asked for
    again, conversations that are rewritten, and versions that come and go (with equal weights)."""
    model = model_of(name)
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        engine = LocalEngine(model, slots=int(rng.integers(1, 5)), columns=96,
                             validation_slots=int(rng.integers(1, 4)))  # fmt: skip
        asked, lanes, found, kept = {}, {}, {}, 0

        def ask(request, lane, *, asked=asked, lanes=lanes, engine=engine):
            asked[request.id], lanes[request.id] = request, lane
            engine.submit([request], lane)

        for i, prompt in enumerate(prompts(9, seed)):
            lane = "validate" if rng.random() < 0.3 else "train"
            limit, how = int(rng.integers(1, 6)), Sampling(temperature=0.8)
            ask(first_turn(f"e{i}", prompt, limit=limit, how=how), lane)
        while engine.health().busy:
            step = engine.step()
            if rng.random() < 0.1:
                engine.load(weights, int(rng.integers(5)))
            for result in step.written:
                before = asked[result.request]
                found[result.request] = result.turn
                reply = rng.integers(0, VOCABULARY, rng.integers(1, 9)).tolist()
                request = next_turn(before, 0, result.turn, reply, limit=int(rng.integers(1, 6)))
                if rng.random() < 0.2:
                    request = replace(request, prompt_token_ids=(1, *request.prompt_token_ids))
                if len(request.prompt_token_ids) < 50:
                    ask(request, step.lane)
                    kept += (result.request, 0) in engine.parking.claimed
            if rng.random() < 0.1:
                again = sorted(asked.keys() - found.keys())[-1:]
                engine.abort(again)
                engine.submit([asked[key] for key in again], lanes[again[0]] if again else "train")
        assert found.keys() == asked.keys() and kept
        plain = LocalEngine(model, slots=8, columns=96, park_turns=False)
        plain.submit(asked.values())
        alike({(key, 0): turn for key, turn in found.items()}, rest(plain)["train"])
