//! The options, and what to do instead.

use super::{RefusedGroup, RefusedOption};

const V: &str = "vLLM";
const S: &str = "SGLang";
const L: &str = "llama.cpp";
const VS: &str = "vLLM, SGLang";
const VL: &str = "vLLM, llama.cpp";
const VSL: &str = "vLLM, SGLang, llama.cpp";

const LOSSLESS: &str =
    "leave it out; verification never changes the law of the text, see --speculative-verification";
const DRAFT_AS_TARGET: &str = "leave it out; drafts are loaded, computed and cached as \
                               --load-format, --dtype, --quantization and --kv-cache-dtype say";
const BREADTH: &str = "use --speculative-eagle-topk, the branches of each drafted token";
const DRAFT: &str = "use --speculative-algorithm (NEXTN for the model's own draft layer, which others call MTP), \
     --speculative-draft-model-path and --speculative-num-steps";
const STEPS: &str = "use --speculative-num-steps, how many tokens deep is drafted";
const REPLICAS: &str = "use --tp-size, or run one server per replica behind a gateway";
const EXPERTS: &str = "use --ep-size with as many groups as --tp-size, so that each rank has experts \
                       of its own";
const ADAPTERS: &str = "leave it out; --max-loras-per-batch adapters are in memory, and no others";
const PARSED: &str = "leave it out; --tool-call-parser and --reasoning-parser are on by default";
const GRAMMAR: &str = "leave it out; requests name their own schema or expression";
const MEMORY: &str = "use --mem-fraction-static, the share of the memory for weights and cache";
const CHAT_TEMPLATE: &str = "put the template into the model folder as chat_template.jinja";
const IN_REQUESTS: &str = "give it in each request; there are no defaults of the server's own";
const SEED: &str = "give `seed` in each request; one without draws its own";
const GRAPHS: &str = "use --cuda-graph-bs or --cuda-graph-max-bs, which --device cuda has";
const NO_GRAPHS: &str = "use --disable-cuda-graph, with --device cuda";
const TOKENIZER: &str = "put the tokenizer.json into the model's folder";
const MODEL_CONFIG: &str = "change it in the config.json of the model's folder";
const KERNELS: &str = "leave it out; each device has one set of kernels, on processors see --isa";
const NO_CHOICE: &str = "leave it out; there is nothing to choose here";
const CHUNK: &str = "use --chunked-prefill-size, or --max-prefill-tokens for all prompts of a step";
const WINDOWS: &str = "leave it out; layers with sliding windows keep what running requests see, \
                       and cached texts as far as there is room";
const OFFLOAD: &str = "leave it out; weights and cache stay in the device's memory, of which \
                       --mem-fraction-static says the share";
const SPLIT: &str =
    "use --tp-size, ranks with equal shares, each on a GPU of its own from --base-gpu-id on";
const PREFILL_DECODE: &str =
    "leave it out; one server does prefill and decode, and no cache leaves it";
const REQUEST_LOG: &str = "use --log-level; `info,access=warn` leaves out the line of each request";
const ADDRESS: &str = "use --dist-init-addr, the host and port of node 0";
const PAGES: &str = "use --max-total-tokens, the tokens in the cache";
const IMAGES: &str = "images and sound are not served; use a model that reads text";
const NO_EMBEDDINGS: &str = "embeddings are not served; use a model that generates text";
const CACHE_TYPE: &str = "use --kv-cache-dtype, for keys and values alike";
const GGUF: &str = "use --model-path with a GGUF file that is on this machine, or with a folder \
                    of safetensors or its name on the hub";
const THREADS: &str = "use --threads-per-rank, for prompts and decoding alike";
const STREAM: &str = "leave it out; each step's tokens are sent at once";
const LARGEST_BATCH: &str = "use --max-prefill-tokens, the new prompt tokens per step, and \
                             --max-running-requests";

/// Rows of whose it is, its spellings, values that pass, and the remedy.
macro_rules! groups {
    ($($heading:literal { $(
        $of:ident $($name:literal)+ $(passes $($pass:literal)+)? => $remedy:expr;
    )* })*) => {
        &[$(RefusedGroup {
            heading: $heading,
            options: &[$(RefusedOption {
                of: $of,
                names: &[$($name),+],
                passes: &[$($($pass),+)?],
                remedy: $remedy,
            }),*],
        }),*]
    };
}

pub(super) const TABLE: &[RefusedGroup] = groups! {
    "Model and weights" {
        L "-m" "-hf" "-hfr" "--hf-repo" => "use --model-path with a folder of safetensors, a GGUF file or a name on the hub";
        L "-mu" "--model-url" "-hff" "--hf-file" => GGUF;
        VS "--tokenizer" "--tokenizer-path" "--tokenizer-revision" => TOKENIZER;
        VS "--tokenizer-mode" passes "auto" => TOKENIZER;
        VS "--skip-tokenizer-init" => "leave it out; /generate takes `input_ids` of any model";
        VS "--trust-remote-code" passes "false" => "code from a model folder is never run";
        VS "--download-dir" => "set HF_HOME or HF_HUB_CACHE, where the hub's programs keep models";
        VL "--hf-token" "-hft" => "set HF_TOKEN, or log in with `hf auth login`";
        V "--config-format" "--model-impl" "--ignore-patterns" "--safetensors-load-strategy" => NO_CHOICE;
        VS "--hf-overrides" "--json-model-override-args" "--rope-scaling" "--rope-theta" => MODEL_CONFIG;
        L "--rope-scale" "--rope-freq-base" "--rope-freq-scale" "--yarn-orig-ctx" => MODEL_CONFIG;
        V "--task" "--runner" "--convert" passes "auto" "generate" "none" => NO_EMBEDDINGS;
        S "--is-embedding" passes "false" => NO_EMBEDDINGS;
        L "--embedding" "--embeddings" "--pooling" "--rerank" "--reranking" => NO_EMBEDDINGS;
        VS "--limit-mm-per-prompt" "--mm-processor-kwargs" "--enable-multimodal" => IMAGES;
        L "-mm" "--mmproj" "--mmproj-url" => IMAGES;
        V "--max-cpu-loras" => ADAPTERS;
        S "--max-loaded-loras" "--lora-eviction-policy" => ADAPTERS;
        S "--lora-target-modules" => "leave it out; an adapter's own tensors say which modules it adapts";
        S "--lora-backend" "--max-lora-chunk-size" => NO_CHOICE;
        L "--lora" "--lora-scaled" => "use --lora-paths, with each adapter as NAME=FOLDER";
        S "--quantization-param-path" => "leave it out; caches of --kv-cache-dtype int8 bring their scales";
        S "--torchao-config" => "use --quantization, which rounds any checkpoint while it is loaded";
        L "-a" "--alias" => "use --served-model-name";
        L "-c" "--ctx-size" => "use --context-length, the tokens of one request; how much all have is --max-total-tokens";
    }
    "Parallelism and devices" {
        V "-tp" => "use --tp-size";
        V "-dp" => "use --dp-size, with --enable-dp-attention";
        VS "--pp-size" "--pp" "--pipeline-parallel-size" "-pp" passes "1" => REPLICAS;
        V "--enable-expert-parallel" passes "false" => EXPERTS;
        V "--distributed-executor-backend" passes "mp" => "leave it out; each rank is a process, on several nodes too";
        VS "--disable-custom-all-reduce" passes "false" => "use --collective-backend, what ranks on GPUs exchange their data by";
        V "--master-addr" "--master-port" => ADDRESS;
        S "--nccl-port" "--nccl-init-addr" => ADDRESS;
        S "--dist-timeout" => "use --startup-timeout for the start, --watchdog-timeout for a step";
        S "--load-balance-method" => "leave it out; a request goes to the DP rank that has its prefix or most room";
        L "-ngl" "--gpu-layers" "--n-gpu-layers" => "use --device cuda, which computes the whole model on GPUs";
        L "-dev" "-sm" "--split-mode" "-ts" "--tensor-split" => SPLIT;
        L "-mg" "--main-gpu" => "use --base-gpu-id";
        L "-t" "--threads" "-tb" "--threads-batch" => THREADS;
        L "-C" "--cpu-mask" "-Cr" "--cpu-range" "--cpu-strict" "--numa" => "use --pin-cores";
        S "--numa-node" => "use --pin-cores";
    }
    "Memory and KV cache" {
        V "--gpu-memory-utilization" => MEMORY;
        V "--block-size" => "use --page-size";
        V "--num-gpu-blocks-override" "--kv-cache-memory-bytes" "--kv-cache-memory" => PAGES;
        V "--enable-prefix-caching" => "leave it out; prefixes are shared unless --disable-radix-cache is given";
        V "--no-enable-prefix-caching" => "use --disable-radix-cache";
        V "--prefix-caching-hash-algo" => "leave it out; prefixes are found by their tokens, not by hashes";
        V "--calculate-kv-scales" => "leave it out; --kv-cache-dtype int8 has a scale for every head of a token";
        V "--swap-space" "--cpu-offload-gb" "--kv-offloading-size" => OFFLOAD;
        S "--enable-hierarchical-cache" "--hicache-ratio" "--hicache-size" "--enable-memory-saver" => OFFLOAD;
        V "--kv-transfer-config" => PREFILL_DECODE;
        S "--swa-full-tokens-ratio" "--disable-hybrid-swa-memory" => WINDOWS;
        V "--disable-hybrid-kv-cache-manager" => WINDOWS;
        L "--swa-full" => WINDOWS;
        S "--disaggregation-mode" passes "null" => PREFILL_DECODE;
        S "--radix-eviction-policy" passes "lru" => "leave it out; what was used least recently makes room";
        L "-ctk" "--cache-type-k" "-ctv" "--cache-type-v" => CACHE_TYPE;
        L "--mlock" "--no-mmap" "-nkvo" "--no-kv-offload" => OFFLOAD;
        L "--cache-prompt" "--cache-reuse" => "leave it out; prefixes are shared unless --disable-radix-cache is given";
        L "--no-cache-prompt" => "use --disable-radix-cache";
        L "--context-shift" "--no-context-shift" => "leave it out; a request ends where its context is full";
    }
    "Batching" {
        V "--max-num-batched-tokens" => LARGEST_BATCH;
        V "--enable-chunked-prefill" => "leave it out; prompts are cut into chunks, see --chunked-prefill-size";
        V "--no-enable-chunked-prefill" => "use --chunked-prefill-size -1";
        V "--long-prefill-token-threshold" "--max-num-partial-prefills" "--max-long-partial-prefills" => CHUNK;
        V "--scheduling-policy" => "use --schedule-policy, and --enable-priority-scheduling for `priority`";
        V "--async-scheduling" => "leave it out; steps overlap unless --disable-overlap-schedule is given";
        V "--no-async-scheduling" => "use --disable-overlap-schedule";
        VS "--num-scheduler-steps" "--num-continuous-decode-steps" passes "1" => "leave it out; each step is planned by itself";
        VS "--stream-interval" passes "1" => STREAM;
        S "--stream-output" => STREAM;
        S "--schedule-conservativeness" => "leave it out; where pages run short a request is retracted and goes on later";
        S "--enable-mixed-chunk" => "leave it out; chunks of prompts and decoding requests share each step";
        S "--prefill-max-requests" => "use --max-prefill-tokens, the new prompt tokens per step";
        L "-b" "--batch-size" "-ub" "--ubatch-size" => LARGEST_BATCH;
        L "-np" "--parallel" => "use --max-running-requests; none of them has a part of the context";
        L "-cb" "--cont-batching" "-nocb" "--no-cont-batching" => "leave it out; requests join and leave the batch at each step";
    }
    "Kernels and graphs" {
        V "--enforce-eager" passes "false" => NO_GRAPHS;
        V "--cuda-graph-sizes" "--cudagraph-capture-sizes" "--max-cudagraph-capture-size" "--max-seq-len-to-capture" => GRAPHS;
        V "-O" "-cc" "--compilation-config" "--optimization-level" => GRAPHS;
        VS "--attention-backend" "--prefill-attention-backend" "--decode-attention-backend" "--sampling-backend" => KERNELS;
        S "--enable-torch-compile" "--torch-compile-max-bs" "--enable-nccl-nvls" "--enable-p2p-check" => KERNELS;
        S "--disable-cuda-graph-padding" => GRAPHS;
        S "--enable-deterministic-inference" => "leave it out; on processors a text never depends on who shares the batch";
        L "-fa" "--flash-attn" => KERNELS;
    }
    "Speculative decoding" {
        V "--speculative-config" "--speculative-model" => DRAFT;
        V "--num-speculative-tokens" => STEPS;
        S "--speculative-accept-threshold-single" "--speculative-accept-threshold-acc" => LOSSLESS;
        S "--speculative-use-rejection-sampling" passes "false" => "use --speculative-verification rejection";
        S "--speculative-use-block-verification" passes "false" => "use --speculative-verification block";
        S "--speculative-token-map" => "leave it out; a head brings its own map of tokens";
        S "--speculative-dflash-block-size" => "leave it out; a DFlash model is asked for its whole block, and --speculative-num-steps says how much of it is verified";
        S "--speculative-draft-load-format" "--speculative-draft-model-quantization" => DRAFT_AS_TARGET;
        S "--speculative-draft-kv-cache-dtype" => DRAFT_AS_TARGET;
        S "--speculative-attention-mode" => "leave it out; there is one kind of pass";
        S "--speculative-ngram-min-bfs-breadth" "--speculative-ngram-max-bfs-breadth" => BREADTH;
        S "--speculative-ngram-match-type" => "leave it out; the likeliest continuations are drafted";
        S "--speculative-ngram-max-trie-depth" "--speculative-ngram-branch-length" => "use --speculative-ngram-max-match-window-size and --speculative-num-steps";
        L "-md" "--model-draft" => "use --speculative-algorithm STANDALONE and --speculative-draft-model-path";
        L "--draft" "--draft-n" "--draft-max" => STEPS;
        L "--draft-min" "--draft-p-min" => "use --speculative-adaptive, by which the depth follows what is accepted";
        L "-ngld" "--gpu-layers-draft" "-cd" "--ctx-size-draft" "-devd" "--device-draft" => DRAFT_AS_TARGET;
    }
    "Requests and sampling" {
        VL "--seed" "-s" => SEED;
        S "--random-seed" => SEED;
        V "--generation-config" "--override-generation-config" => IN_REQUESTS;
        S "--preferred-sampling-params" "--sampling-defaults" => IN_REQUESTS;
        L "--temp" "--temperature" "--top-k" "--top-p" "--min-p" "--repeat-penalty" "--samplers" => IN_REQUESTS;
        L "-n" "--predict" "--n-predict" => "give `max_tokens` in each request";
        V "--max-logprobs" => "use --max-top-logprobs";
        VSL "--chat-template" "--chat-template-file" "--chat-template-content-format" => CHAT_TEMPLATE;
        L "--jinja" => "leave it out; chat templates are Jinja";
        V "--enable-auto-tool-choice" "--enable-reasoning" => PARSED;
        V "--tool-parser-plugin" "--reasoning-parser-plugin" => "use --tool-call-parser and --reasoning-parser, whose formats are built in";
        L "--reasoning-format" => "use --reasoning-parser, where none leaves reasoning in the text";
        L "--reasoning-budget" => "send `thinking_budget_tokens` with each request";
        VS "--guided-decoding-backend" "--structured-outputs-config" "--grammar-backend" passes "none" => GRAMMAR;
        L "--grammar" "--grammar-file" "-j" "--json-schema" => GRAMMAR;
        S "--enable-custom-logit-processor" => "use `logit_bias`, penalties and the other fields of requests";
        V "--logits-processors" => "use `logit_bias`, penalties and the other fields of requests";
    }
    "Server and logs" {
        VS "--enable-cache-report" "--enable-prompt-tokens-details" => "leave it out; `usage` always says how many tokens were cached";
        S "--enable-metrics" => "leave it out; /metrics is always there";
        L "--metrics" "--slots" "--props" => "leave it out; /metrics, /requests and /props are always there";
        S "--enable-request-time-stats-logging" => REQUEST_LOG;
        V "--disable-log-requests" "--enable-log-requests" "--max-log-len" => REQUEST_LOG;
        S "--log-requests" "--log-requests-level" => REQUEST_LOG;
        V "--disable-log-stats" "--uvicorn-log-level" "--disable-uvicorn-access-log" => REQUEST_LOG;
        S "--log-level-http" "--decode-log-interval" => REQUEST_LOG;
        L "-v" "--verbose" "-lv" "--verbosity" "--log-disable" => "use --log-level";
        V "--allowed-origins" "--allowed-methods" "--allowed-headers" "--allow-credentials" => "use --cors-allowed-origins";
        V "--root-path" => "leave it out; let the proxy take its own path off";
        S "--fastapi-root-path" => "leave it out; let the proxy take its own path off";
        V "--api-server-count" => "use --tokenizer-managers, which share the port";
        S "--tokenizer-worker-num" => "use --tokenizer-managers, which share the port";
        S "--grpc-mode" => "use --sglang-grpc-port, beside HTTP";
        S "--warmups" "--skip-server-warmup" => "leave it out; a server is ready when a step ran on every rank";
        V "--headless" => "use --node-rank; nodes after the first have no public ports";
        L "--ssl-key-file" => "use --ssl-keyfile";
        L "--ssl-cert-file" => "use --ssl-certfile";
        L "-to" "--timeout" => "use --request-timeout for a whole request, --send-timeout for clients that take nothing";
        L "--threads-http" => "use --tokenizer-managers, which share the port";
        L "--no-webui" => "use --disable-console";
        L "--path" => "leave it out; put a web server in front for files of your own";
    }
};
