"""Small networks of Hugging Face's transformers, built from configurations; for ``torch:tests.workloads.huggingface:<name>``.

They are what users have: structured outputs, caches, outputs that are None, masks and token types by keyword, several
inputs of unlike kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mlflow_ngraph.workloads import torchvision_compat

# transformers imports torchvision wherever it is installed.
torchvision_compat.install()

import transformers  # noqa: E402 - once torchvision can be imported

VOCABULARY = 99
LENGTH = 12
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER = {**_TEXT, "intermediate_size": 64, "max_position_embeddings": 32, "initializer_range": 0.2}
_GPT2 = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}

_IDS = {"shape": ["batch", LENGTH], "dtype": "int64", "high": VOCABULARY}
_MASK = {"shape": ["batch", LENGTH], "dtype": "int64", "low": 1, "high": 2}
_TYPES = {"shape": ["batch", LENGTH], "dtype": "int64", "high": 2}
_IMAGE = {"shape": ["batch", 3, 32, 32]}

Inputs = Mapping[str, Mapping[str, Any]]

INPUTS: dict[str, Inputs] = {
    "bert": {"input_ids": _IDS, "attention_mask": _TYPES, "token_type_ids": _TYPES},
    "distilbert": {"input_ids": _IDS, "attention_mask": _MASK},
    "token_classifier": {"input_ids": _IDS, "token_type_ids": _TYPES},
    "gpt2": {"input_ids": _IDS},
    "gpt2_cached": {"input_ids": _IDS},
    "llama_cached": {"input_ids": _IDS, "attention_mask": _MASK},
    "t5": {"input_ids": _IDS, "decoder_input_ids": {**_IDS, "shape": ["batch", 5]}},
    "bart": {"input_ids": _IDS, "attention_mask": _MASK, "decoder_input_ids": {**_IDS, "shape": ["batch", 5]}},
    "vit": {"pixel_values": _IMAGE},
    "swin": {"pixel_values": _IMAGE},
    "convnext": {"pixel_values": _IMAGE},
    "wav2vec2": {"input_values": {"shape": ["batch", 800]}},
    "whisper_encoder": {"input_features": {"shape": ["batch", 16, 64]}},
    "clip": {"input_ids": _IDS, "pixel_values": _IMAGE, "attention_mask": _MASK},
}
"""The inputs of each factory, as a study file has them: by keyword."""


def bert() -> nn.Module:
    """An encoder that is masked, with two outputs and several that are None."""
    return transformers.BertModel(transformers.BertConfig(**_ENCODER))


def distilbert() -> nn.Module:
    """An encoder under a classifier of sequences."""
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=32, num_labels=3
    )
    return transformers.DistilBertForSequenceClassification(config)


def token_classifier() -> nn.Module:
    """An encoder under a classifier of tokens."""
    return transformers.BertForTokenClassification(transformers.BertConfig(**_ENCODER, num_labels=5))


def gpt2() -> nn.Module:
    """A decoder that keeps no cache."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2, use_cache=False))


def gpt2_cached() -> nn.Module:
    """A decoder that returns keys and values as a cache."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2, use_cache=True))


def llama_cached() -> nn.Module:
    """A decoder with rotary positions and fewer heads for keys than for queries, that returns a cache."""
    config = transformers.LlamaConfig(**_ENCODER, num_key_value_heads=2, use_cache=True)
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    """An encoder and a decoder with relative positions, and a cache of both attentions."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def bart() -> nn.Module:
    """An encoder and a decoder with learnt positions, without a cache."""
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
        use_cache=False,
    )
    return transformers.BartForConditionalGeneration(config)


def vit() -> nn.Module:
    """A transformer over patches of images."""
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=5,
    )
    return transformers.ViTForImageClassification(config)


def swin() -> nn.Module:
    """A transformer over shifted windows."""
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return transformers.SwinForImageClassification(config)


def convnext() -> nn.Module:
    """A convolutional network."""
    config = transformers.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, num_labels=5)
    return transformers.ConvNextForImageClassification(config)


def wav2vec2() -> nn.Module:
    """Convolutions over a waveform, and an encoder."""
    config = transformers.Wav2Vec2Config(
        **_TEXT,
        intermediate_size=64,
        conv_dim=[16, 16],
        conv_kernel=[10, 3],
        conv_stride=[5, 2],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return transformers.Wav2Vec2Model(config)


def whisper_encoder() -> nn.Module:
    """The encoder of a network for speech, over a spectrogram."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        max_source_positions=32,
        pad_token_id=0,
    )
    return WhisperEncoder(config)


def clip() -> nn.Module:
    """Text and images, compared."""
    config = transformers.CLIPConfig(
        text_config={**_TEXT, "intermediate_size": 64, "max_position_embeddings": 32, "eos_token_id": VOCABULARY - 1},
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "image_size": 32,
            "patch_size": 8,
        },
        projection_dim=16,
    )
    return transformers.CLIPModel(config)
