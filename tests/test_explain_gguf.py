"""pe.explain on gguf files, written here without tensors except the small ones that scale."""

import json

import numpy as np
import pytest

import pe
from pe.pretrained.load import load

gguf = pytest.importorskip("gguf", reason="reading gguf files needs the gguf package")


def written(path, architecture="llama", scaling=None, tensors=None, **fields):
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(fields.get("context", 8192))
    writer.add_block_count(2)
    writer.add_embedding_length(576)
    writer.add_head_count(9)
    writer.add_head_count_kv(3)
    writer.add_rope_dimension_count(64)
    if "base" in fields:
        writer.add_rope_freq_base(fields["base"])
    if tokens := fields.get("tokens"):
        writer.add_feed_forward_length(64)
        writer.add_vocab_size(len(tokens))
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_merges(["a b"])
    for name, value in (scaling or {}).items():
        key = f"{architecture}.rope.scaling.{name}"
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key, value)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_is_a_configuration(tmp_path):
    explanation = pe.explain(written(tmp_path / "a.gguf", base=100000.0))
    assert explanation.model_type == "llama"
    assert (explanation.main.base, explanation.main.width) == (100000.0, 64)
    assert explanation.training.tokens == 8192
    assert any("interleaved" in note for note in explanation.notes)


def test_a_folder_with_one_gguf_file_is_read(tmp_path):
    path = written(tmp_path / "a.gguf", base=100000.0)
    assert pe.explain(tmp_path) == pe.explain(path)


def test_scaling_is_read(tmp_path):
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 8192}
    explanation = pe.explain(written(tmp_path / "a.gguf", scaling=scaling, base=1e6, context=32768))
    assert (explanation.main.kind, explanation.main.factor) == ("yarn", 4.0)
    assert explanation.training.original == 8192


def test_divisors_of_llama3_are_read_from_their_tensor(tmp_path):
    divisors = np.linspace(1, 8, 32)
    tensors = {"rope_freqs.weight": divisors}
    main = pe.explain(written(tmp_path / "a.gguf", tensors=tensors, base=5e5)).main
    plain = 5e5 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(main.spectrum().inv_freq, plain / divisors, rtol=1e-6)
    assert main.spectrum().magnitude == 1.0


@pytest.mark.parametrize("how", ["metadata", "tensor"])
def test_a_model_from_a_file_keeps_the_scaling_of_its_frequencies(tmp_path, how):
    """transformers leaves it out."""
    more = {"tensors": {"rope_freqs.weight": np.linspace(1, 8, 32)}}
    if how == "metadata":
        more = {"scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 2048}}
    path = written(tmp_path / "a.gguf", base=5e5, tokens=["a", "b", "ab", "<unk>"], **more)
    model, _ = load(path)
    ours, theirs = pe.explain(path).main.spectrum(), model.model.rotary_emb
    np.testing.assert_allclose(theirs.inv_freq, ours.inv_freq, rtol=1e-6)
    assert theirs.attention_scaling == pytest.approx(ours.magnitude)


def test_a_base_that_the_file_does_not_state_is_named(tmp_path):
    explanation = pe.explain(written(tmp_path / "a.gguf"))
    assert {warning.name for warning in explanation.warnings} == {"base not stated"}


def test_an_unknown_architecture_is_one_line(tmp_path):
    path = written(tmp_path / "a.gguf", architecture="lama")
    with pytest.raises(
        ValueError, match=r"unknown gguf architecture 'lama' \(did you mean 'llama'"
    ):
        pe.explain(path)


def test_a_file_that_is_no_gguf_is_one_line(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_text(json.dumps({"model_type": "llama"}) * 20)
    with pytest.raises(ValueError, match="no gguf file that can be read"):
        pe.explain(path)
