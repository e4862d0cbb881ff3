"""The service embeds texts for clients of OpenAI's service, as it embeds for a search."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.retriever import Retriever
from tests.helpers.serving import Gate, asked_together, listening, served
from tests.helpers.tiny import tiny_model
from tests.unit.retrieval.conftest import World

TEXTS = ["ka lo mi", "a longer text of ka lo, mi and nu " * 6, "nu"]


@pytest.fixture(scope="module")
def models(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, BiEncoder]:
    """``two``: towers of their own; ``one``: a shared tower; ``prompted``: a shared tower with prompts."""
    folder = tmp_path_factory.mktemp("models")
    prompts = {"query_prompt": "ka: ", "prompts": {"fact": "nu: "}, "normalize": False}
    shared = {
        "one": tiny_model(folder / "a", dtype=torch.float32, shared=True, normalize=True),
        "prompted": tiny_model(folder / "b", seed=1, dtype=torch.float32, shared=True, **prompts),
    }
    return {"two": world.model, **shared}


@pytest.fixture(scope="module")
def runs(
    run_folder: Path, models: dict[str, BiEncoder], world: World, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "prompted"):
        Retriever.build(models[name], world.passages, folder=folder / name, device="cpu")
    Retriever.build(None, world.passages, folder=folder / "words")
    return {"two": run_folder} | {name: folder / name for name in ("one", "prompted", "words")}


@pytest.fixture(scope="module")
def client(runs: dict[str, Path]) -> Iterator[Any]:
    with served(runs) as found:
        yield found


def vectors_of(client: Any, **asked: Any) -> np.ndarray:
    answer = client.post("/v1/embeddings", json=asked)
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], dtype=np.float32)


def close(found: Any, expected: Any) -> bool:
    return np.allclose(found, expected, atol=1e-6)


def test_the_real_client_of_openai(runs: dict[str, Path], models: dict[str, BiEncoder]) -> None:
    openai = pytest.importorskip("openai", reason="the extra interop is not installed")
    model = models["two"]
    with listening(runs) as address:
        client = openai.OpenAI(base_url=f"{address}v1", api_key="none", max_retries=0)
        for name, expected in {
            "query": model.encode_questions(TEXTS),
            "passage": model.encode_passages(TEXTS),
        }.items():
            for options in ({}, {"encoding_format": "float"}):  # by default it asks for base64
                answer = client.embeddings.create(
                    model="two", input=TEXTS, extra_body={"input_type": name}, **options
                )
                assert close([item.embedding for item in answer.data], expected)
        assert [item.index for item in answer.data] == [0, 1, 2] and answer.model == "two"
        tokens = [len(ids) for ids in model.tensorizer.passage_tokens([Passage(text) for text in TEXTS])]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(tokens)
        assert close(
            client.embeddings.create(model="one", input=TEXTS[0]).data[0].embedding,
            models["one"].encode(TEXTS[0]),
        )
        with pytest.raises(openai.UnprocessableEntityError, match="set input_type"):
            client.embeddings.create(model="two", input=TEXTS)
        names = [model.id for model in client.models.list()]
        assert {"one", "prompted", "two", "two:dense"} <= {*names} and "words" not in names
        many = [f"ka {number}" for number in range(1000)]  # as LangChain's client sends them
        answer = client.embeddings.create(model="one", input=many, encoding_format=None)
        assert close([item.embedding for item in answer.data], models["one"].encode(many))
        with pytest.raises(
            openai.NotFoundError, match="there is no index 'text-embedding-3-small'; /info lists"
        ):
            client.embeddings.create(model="text-embedding-3-small", input=TEXTS)


def test_the_vectors_are_those_that_are_searched(
    client: Any, models: dict[str, BiEncoder], runs: dict[str, Path], world: World
) -> None:
    for name, model in models.items():
        question = world.questions[0].text
        (vector,) = vectors_of(client, model=name, input=question, input_type="query")
        hit = Retriever.open(runs[name], mode="dense", device="cpu").search(question, 1)[0]
        assert float(vector @ model.encode_passages(hit.passage)) == pytest.approx(hit.score, abs=1e-5)
    for mode in ("two:dense", "two:bm25"):  # whichever way of searching a run is named by
        assert close(
            vectors_of(client, model=mode, input=TEXTS, input_type="document"),
            models["two"].encode_passages(TEXTS),
        )
    assert close(
        vectors_of(client, model="prompted", input=TEXTS, input_type="fact"),
        models["prompted"].encode_questions(TEXTS, prompt="fact"),
    )


def test_dimensions_are_the_first_ones_and_of_length_1_where_the_models_are(
    client: Any, models: dict[str, BiEncoder]
) -> None:
    whole = models["one"].encode(TEXTS)
    cut = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    assert close(vectors_of(client, model="one", input=TEXTS, dimensions=5), cut)
    assert close(vectors_of(client, model="one", input=TEXTS, dimensions=whole.shape[1]), whole)
    plain = models["prompted"].encode_questions(TEXTS)
    assert close(
        vectors_of(client, model="prompted", input=TEXTS, input_type="query", dimensions=5), plain[:, :5]
    )


def test_sides_that_differ_must_be_named(client: Any, models: dict[str, BiEncoder]) -> None:
    for name, differ in {"two": True, "one": False, "prompted": True}.items():
        assert models[name].sides_differ == differ
        answer = client.post("/v1/embeddings", json={"model": name, "input": TEXTS})
        assert answer.status_code == (422 if differ else 200)
        assert ("embeds questions and passages differently" in answer.text) == differ


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"input": [[1, 2], [3]]},
            "input: holds something else than texts; token numbers are those of one tokenizer",
        ),
        ({"input": []}, "input"),
        ({"input": ""}, "a text is empty"),
        ({"input": "ka", "dimensions": 9999}, "dimensions=9999, but the vectors have 16"),
        ({"input": "ka", "model": "words"}, "words has no model; it searches by words alone"),
        ({"input": "ka", "input_type": "title"}, "'title' is not known; choose from query, passage"),
        ({"input": "ka", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_what_is_refused(client: Any, asked: dict[str, Any], said: str) -> None:
    answer = client.post("/v1/embeddings", json={"input_type": "query", **asked})
    assert answer.status_code == 422 and said in answer.json()["error"]["message"], answer.text


def test_a_model_without_passages_embeds_and_says_what_it_cannot(
    models: dict[str, BiEncoder], tmp_path: Path
) -> None:
    model = models["two"]
    model.save(tmp_path / "model")
    with served({"model": tmp_path / "model"}) as client:
        index = client.get("/info").json()["indexes"][0]
        assert (index["name"], index["mode"], index["passages"]) == ("model", "model", None)
        assert index["model_fingerprint"] == model.fingerprint
        for side, expected in (
            ("query", model.encode_questions(TEXTS)),
            ("passage", model.encode_passages(TEXTS)),
        ):
            assert close(vectors_of(client, input=TEXTS, input_type=side), expected)
        for more in ({}, {"filter": {"ids": ["1"]}}):
            answer = client.post("/search", json={"queries": ["ka"], **more})
            assert answer.status_code == 422 and "model is a model without passages" in answer.text


def test_one_wrong_request_does_not_fail_those_beside_it(runs: dict[str, Path]) -> None:
    def fail(questions: list[str]) -> None:
        gate(questions)
        if "broken" in questions:
            raise ZeroDivisionError

    gate = Gate()
    searches: list[tuple[str, Any]] = [("search", {"queries": [one]}) for one in ("lo", "ka", "broken", "nu")]
    embedding = {"input": TEXTS[:1]}
    with served({"one": runs["one"]}, before=fail) as client:
        others = [("v1/embeddings", embedding), ("v1/embeddings", embedding | {"dimensions": 9999})]
        answers = asked_together(client, gate, *searches, *others)
    assert [answer.status_code for answer in answers] == [200, 200, 500, 200, 200, 422]
    assert "its log has the reason" in answers[2].json()["error"]
    assert len(gate.searched[1]) == 3, "they were one batch"


def test_a_refusal_of_any_kind_is_where_openais_clients_look_for_it(runs: dict[str, Path]) -> None:
    with served({"one": runs["one"]}, token="secret") as client:
        where, asked = "/v1/embeddings", {"input": "ka"}
        head = {"Authorization": "Bearer secret"}
        answers = [
            client.get("/v1/models"),
            client.post("/v1/chat/completions", json={}),
            client.post(where, json=asked),
            client.post(where, json={"input": "ka " * 3_000_000}, headers=head),
            client.post(where, content=b"{", headers=head),
            client.get(where, headers=head),
            client.post(where, json=asked | {"model": "none"}, headers=head),
        ]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 413, 422, 405, 404]
        assert all(answer.json()["error"].keys() == {"message"} for answer in answers)
        assert all(int(answer.headers["content-length"]) == len(answer.content) for answer in answers)
        assert isinstance(client.post("/search", json={"queries": ["ka"]}).json()["error"], str)
