"""The trained tokenizer: bytes, digits, determinism; and tokenizers that exist already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pe.data import TokenData, prepare
from pe.data.tokenizer import END, PAD, plan_tokenizer, train_bpe

TEXTS = [
    f"The year {y} had {y % 7} moons, {y}km away.\n    indented ✓\r\n" for y in range(1900, 2000)
]


def books(path: Path, extra: str = "") -> str:
    path.mkdir()
    for i, text in enumerate(TEXTS):
        (path / f"{i:03}.txt").write_bytes((text * 3 + extra).encode())
    return str(path)


def test_every_byte_and_any_text_comes_back() -> None:
    tokenizer = train_bpe(TEXTS, 320)
    # Every byte value occurs in the UTF-8 of these characters, or is a token of its own.
    latin = "".join(map(chr, range(256)))
    wide = "".join(chr(c) for c in range(0x100, 0x30000, 97) if not 0xD800 <= c < 0xE000)
    for text in (latin, wide, "a  b\t\n\n c", " lead", "", "e\u0301 \u00e9"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    singles = [token for token in tokenizer.get_vocab() if len(token) == 1]
    assert len(singles) == 256


def test_every_digit_is_a_token_of_its_own() -> None:
    tokenizer = train_bpe(["2024 2024 2024 1234567 x2024 2024x"] * 50, 400)
    assert not [t for t in tokenizer.get_vocab() if len(t) > 1 and any(c.isdigit() for c in t)]
    assert tokenizer.encode("in 2024, 2024").tokens.count("2") == 4


def test_training_is_deterministic() -> None:
    assert train_bpe(TEXTS, 512).to_str() == train_bpe(list(TEXTS), 512).to_str()


def test_a_vocabulary_that_cannot_be_filled_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_bpe(["abc abc"], 512)
    assert tokenizer.get_vocab_size() < 300
    assert "fills only 261 of the 512 vocabulary entries" in caplog.text
    assert "vocab_size=264 would do" in caplog.text


def test_a_text_that_spells_the_end_token_does_not_end_a_document(tmp_path: Path) -> None:
    data = prepare(books(tmp_path / "b", extra=f"{END} spelled {PAD}"), 512, cache=tmp_path / "c")
    for split in (data.train, data.validation, data.test):
        assert (split.tokens == data.end_id).sum() == len(split.starts)
    first = data.train.tokens[: data.train.lengths[0] - 1].tolist()
    assert data.load_tokenizer().decode(first).endswith(f"{END} spelled {PAD}")


def test_the_tokenizer_travels_with_a_model(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    data = prepare(books(tmp_path / "b"), 512, cache=tmp_path / "c")
    data.tokenizer.save_pretrained(tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "In 1984  there were\n\tunder_scores ✓"
    assert loaded(text)["input_ids"] == data.tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.eos_token, loaded.pad_token) == (END, PAD)
    assert loaded.eos_token_id == data.end_id
    padded = loaded(["a", "a b c"], padding=True)
    assert padded["attention_mask"][0][0] == 0, "on the left, where prompts are not continued"


def test_tokenizers_that_exist_already(tmp_path: Path) -> None:
    corpus = books(tmp_path / "b")
    trained = prepare(corpus, 512, cache=tmp_path / "c")
    trained.tokenizer.save_pretrained(tmp_path / "given")
    for given in (tmp_path / "given", tmp_path / "given" / "tokenizer.json"):
        data = prepare(corpus, 512, str(given), cache=tmp_path / "c")
        assert (data.train.tokens == trained.train.tokens).all()
        assert data.summary()["tokenizer"] == str(given)
        assert data.fingerprint == trained.fingerprint
        assert data.directory != trained.directory
        assert data.tokenizer.pad_token is not None
        assert data.tokenizer.padding_side == "left"
        again = prepare(corpus, 512, str(given), cache=tmp_path / "c")
        assert again.directory == data.directory
    with pytest.raises(ValueError, match="more than vocab_size 264; set vocab_size to 296 or more"):
        prepare(corpus, 264, str(tmp_path / "given"), cache=tmp_path / "c")
    wide = prepare(corpus, 70_000, str(tmp_path / "given"), cache=tmp_path / "c")
    assert wide.train.tokens.dtype == "uint32"
    assert (wide.train.tokens == trained.train.tokens).all()


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    trained = prepare(books(tmp_path / "b"), 264, cache=tmp_path / "c").tokenizer
    content = json.loads(trained.backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 600  # ids may have gaps
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="its largest id is 600.*set vocab_size to 608 or more"):
        plan_tokenizer(str(tmp_path / "tokenizer.json"), 512)
    assert plan_tokenizer(str(tmp_path / "tokenizer.json"), 608).vocab_size == 608


def test_a_folder_called_like_a_trained_one_keeps_its_own_end_token(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    corpus = books(tmp_path / "b")
    trained = prepare(corpus, 512, cache=tmp_path / "c")
    file = str(trained.directory / "tokenizer" / "tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=file, eos_token=PAD).save_pretrained(
        tmp_path / "bpe-mine"
    )
    data = prepare(corpus, 512, str(tmp_path / "bpe-mine"), cache=tmp_path / "c")
    assert data.end_token == data.tokenizer.eos_token == PAD
    assert data.end_id == data.tokenizer.eos_token_id != trained.end_id


def test_tokenizers_that_differ_in_their_padding_token_are_two(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    corpus = books(tmp_path / "b")
    file = str(
        prepare(corpus, 512, cache=tmp_path / "c").directory / "tokenizer" / "tokenizer.json"
    )
    found = []
    for pad in (PAD, "a"):
        path = tmp_path / pad.strip("<|>")
        PreTrainedTokenizerFast(tokenizer_file=file, eos_token=END, pad_token=pad).save_pretrained(
            path
        )
        found.append(prepare(corpus, 512, str(path), cache=tmp_path / "c"))
        assert found[-1].tokenizer.pad_token == pad
    assert found[0].directory != found[1].directory


def test_data_says_how_it_differs_from_a_record(tmp_path: Path) -> None:
    """A tokenizer replaced under its path is another one, although its name is the same."""
    from transformers import PreTrainedTokenizerFast

    corpus, path = books(tmp_path / "b"), tmp_path / "own"
    trained = prepare(corpus, 512, cache=tmp_path / "c")
    file = str(trained.directory / "tokenizer" / "tokenizer.json")

    def with_pad(pad: str) -> TokenData:
        PreTrainedTokenizerFast(tokenizer_file=file, eos_token=END, pad_token=pad).save_pretrained(
            path
        )
        return prepare(corpus, 512, str(path), cache=tmp_path / "c")

    first = with_pad(PAD)
    recorded = first.summary()
    assert first.difference(recorded) is None
    assert with_pad(PAD).difference(recorded) is None
    changed = with_pad("a").difference(recorded)
    assert (changed or "").startswith("the tokenizer was")
    old = {k: v for k, v in recorded.items() if k != "tokenizer_fingerprint"}
    assert trained.difference(old) is None, "records from before tokenizers were fingerprinted"
    Path(corpus, "more.txt").write_text("One more document.")
    changed = prepare(corpus, 512, str(path), cache=tmp_path / "c").difference(recorded)
    assert (changed or "").startswith("the text was")


def test_wrong_requests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'bpe'"):
        plan_tokenizer("bpee", 512)
    with pytest.raises(ValueError, match="multiple of 8, for example 4104"):
        plan_tokenizer("bpe", 4100)
    with pytest.raises(ValueError, match="at least 264"):
        plan_tokenizer("bpe", 256)
    for path in ("./tok.json", "/nowhere/tok", "data/tok.json", "gpt2"):
        with pytest.raises(ValueError, match="not OWNER/NAME on the hub, and no tokenizer.json"):
            plan_tokenizer(path, 512)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="could not be read"):
        plan_tokenizer(str(tmp_path / "tokenizer.json"), 512)


def test_a_tokenizer_of_the_hub_that_cannot_be_had_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(name: str) -> None:
        raise OSError("no connection.\nMore about it.")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", offline)
    with pytest.raises(ValueError, match="no connection; nothing is at .* use tokenizer 'bpe'"):
        plan_tokenizer("openai-community/gpt2", 512)
