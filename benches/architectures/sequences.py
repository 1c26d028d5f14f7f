"""Networks of text, sound and series: transformers, recurrent ones, and our own."""

from __future__ import annotations

import modules
from architecture import Architecture, Shapes, encoder, language
from torch import nn

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}
SHARED_KEYS = {"num_key_value_heads": 2, "pad_token_id": 0}
SHARED_HEADS = {"head_dim": 32, **SHARED_KEYS}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 1}
OWN_NAMES = {"n_layer": 2, "n_head": 4}
SPEECH = {
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "conv_dim": [32] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
TOKENS: Shapes = ((1, 32),)


def _text(kind: str, **options: object) -> Architecture:
    return Architecture(language(kind, "last_hidden_state", **{**SMALL, **options}), TOKENS, 1000)


SEQUENCES: dict[str, Architecture] = {
    "bert": Architecture(language("bert", "last_hidden_state", **SMALL), TOKENS, 1000),
    "distilbert": Architecture(
        language(
            "distilbert", "last_hidden_state", dim=128, n_layers=2, n_heads=4, hidden_dim=256, vocab_size=1000
        ),
        TOKENS,
        1000,
    ),
    "roberta": Architecture(language("roberta", "last_hidden_state", **SMALL), TOKENS, 1000),
    "albert": Architecture(language("albert", "last_hidden_state", **SMALL), TOKENS, 1000),
    "llama": Architecture(
        language("llama", "last_hidden_state", num_key_value_heads=2, **SMALL), TOKENS, 1000
    ),
    "qwen2": Architecture(
        language("qwen2", "last_hidden_state", num_key_value_heads=2, **SMALL), TOKENS, 1000
    ),
    "t5_encoder": Architecture(
        encoder("t5", d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=1000),
        TOKENS,
        1000,
    ),
    "whisper_encoder": Architecture(
        encoder(
            "whisper", d_model=128, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256,
            max_source_positions=200, decoder_layers=1, decoder_attention_heads=4, num_mel_bins=80,
        ),
        ((1, 80, 400),),
    ),
    "wav2vec2": Architecture(language("wav2vec2", "last_hidden_state", **SPEECH), ((1, 8000),)),
    "lstm_language_model": Architecture(lambda: modules.Recurrent(nn.LSTM), ((1, 24),), 500),
    "gru_language_model": Architecture(lambda: modules.Recurrent(nn.GRU), ((1, 24),), 500),
    "bilstm_tagger": Architecture(lambda: modules.Recurrent(nn.LSTM, both_ways=True), ((1, 16),), 500),
    "tcn": Architecture(modules.Temporal, ((1, 8, 100),)),
    "transformer_encoder": Architecture(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2),
        ((1, 20, 64),),
    ),
    "crnn": Architecture(modules.TextReader, ((1, 1, 32, 64),)),
    "wavenet": Architecture(modules.WaveNet, ((1, 1, 256),)),
    "conformer": Architecture(modules.Conformer, ((1, 120, 80),)),
    "clip_text": _text("clip_text_model"),
    "deberta_v2": _text("deberta-v2"),
    "xlm_roberta": _text("xlm-roberta"),
    "opt": _text("opt", ffn_dim=256, word_embed_proj_dim=128),
    "xlnet": _text("xlnet", d_model=128, d_inner=256, **OWN_NAMES),
    "bloom": _text("bloom", **OWN_NAMES),
    "gpt_bigcode": _text("gpt_bigcode", n_embd=128, **OWN_NAMES),
    "mamba": _text("mamba", state_size=8),
    "mamba2": _text("mamba2", state_size=8, num_heads=8, head_dim=32, n_groups=1),
    "rwkv": _text("rwkv", attention_hidden_size=128),
    "modernbert": _text("modernbert", pad_token_id=0, cls_token_id=1, sep_token_id=1, **SPECIAL),
    "ast": Architecture(
        language(
            "audio-spectrogram-transformer", "last_hidden_state", max_length=128, num_mel_bins=64,
            hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
        ),
        ((1, 128, 64),),
    ),
    "hubert": Architecture(language("hubert", "last_hidden_state", **SPEECH), ((1, 8000),)),
    "speech2text": Architecture(
        encoder(
            "speech_to_text", d_model=96, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=192,
            decoder_layers=1,
        ),
        ((1, 200, 80),),
    ),
    "patchtst": Architecture(
        language(
            "patchtst", "last_hidden_state", context_length=64, num_input_channels=3, d_model=64,
            num_hidden_layers=2, patch_length=8,
        ),
        ((1, 64, 3),),
    ),
}  # fmt: skip

for _name in [
    "electra",
    "convbert",
    "mpnet",
    "gpt_neox",
    "phi",
    "falcon",
    "nystromformer",
    "deberta",
    "fnet",
    "roformer",
    "mobilebert",
    "rembert",
    "ibert",
]:
    SEQUENCES[_name] = _text(_name)
for _name in ["gemma", "gemma2", "gemma3_text", "qwen3", "smollm3", "glm"]:
    SEQUENCES[_name] = _text(_name, **SHARED_HEADS)
for _name in ["mistral", "olmo2", "granite", "starcoder2", "stablelm", "cohere"]:
    SEQUENCES[_name] = _text(_name, **SHARED_KEYS, **SPECIAL)
for _name in ["bart", "mbart", "pegasus"]:
    SEQUENCES[f"{_name}_encoder"] = Architecture(
        encoder(
            _name, d_model=128, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256,
            decoder_layers=1, vocab_size=1000,
        ),
        TOKENS,
        1000,
    )  # fmt: skip
