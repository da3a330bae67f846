//! Text in and out of token ids: tokenizing, chat templates, incremental detokenizing, stop strings.
