"""Language models: the small decoders that several methods train from scratch, and small pretrained ones.

`assay.language.tiny`, `.hooks`, `.minilm` and `.smollm2` need torch and are imported by name, never from here.
"""
