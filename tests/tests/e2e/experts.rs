//! A mixture of experts whose experts are split by number over real processes.

use std::{fs, path::Path};

use futures::future::join_all;
use lockstep_tests::{
    MODEL,
    body::{COUNTED, counting, with},
    server::Server,
    turns,
};
use serde_json::{Map, Value, json};

use crate::{options, weights::copy_demo};

const CHAT: &str = "/v1/chat/completions";
/// Experts of a layer.
const EXPERTS: usize = 4;

/// Copies the demo model as a Mixtral whose experts are all the demo model's MLP. Whichever two of
/// them a token chooses, their weighed sum is that MLP's output, so texts are the demo model's.
fn mixture_of_demo(folder: &Path) {
    copy_demo(folder);
    let file = folder.join("config.json");
    let config = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
    let fields = json!({
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
    });
    fs::write(&file, with(config, &fields).to_string()).expect("written");
    let file = folder.join("model.safetensors");
    fs::write(&file, mixture(&fs::read(&file).expect("read"))).expect("written");
}

/// Rewrites a file of Llama's tensors with experts in place of each MLP. Routers are some rows of the
/// embedding.
fn mixture(llama: &[u8]) -> Vec<u8> {
    let (length, rest) = llama.split_first_chunk().expect("a length");
    let length = usize::try_from(u64::from_le_bytes(*length)).expect("a size");
    let (header, data) = rest.split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("a header");
    let bytes_of = |tensor: &Value| {
        let at = |end: usize| {
            let offset = tensor["data_offsets"][end].as_u64().expect("an offset");
            usize::try_from(offset).expect("a size")
        };
        &data[at(0)..at(1)]
    };
    let (mut found, mut bytes) = (Map::new(), Vec::new());
    let mut add = |name: String, dtype: &Value, shape: &Value, own: &[u8]| {
        let offsets = [bytes.len(), bytes.len() + own.len()];
        bytes.extend_from_slice(own);
        let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        found.insert(name, tensor);
    };
    let embedding = &header["model.embed_tokens.weight"];
    let width = &embedding["shape"][1];
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let (dtype, shape) = (&tensor["dtype"], &tensor["shape"]);
        let Some((layer, projection)) = name.split_once(".mlp.") else {
            add(name.clone(), dtype, shape, bytes_of(tensor));
            continue;
        };
        let expert_name = match projection {
            "gate_proj.weight" => "w1",
            "up_proj.weight" => "w3",
            _ => "w2",
        };
        for expert in 0..EXPERTS {
            let name = format!("{layer}.block_sparse_moe.experts.{expert}.{expert_name}.weight");
            add(name, dtype, shape, bytes_of(tensor));
        }
        if expert_name == "w2" {
            let row = 2 * usize::try_from(width.as_u64().expect("a width")).expect("a size");
            let rows = &bytes_of(embedding)[100 * row..(100 + EXPERTS) * row];
            let name = format!("{layer}.block_sparse_moe.gate.weight");
            add(name, dtype, &json!([EXPERTS, width]), rows);
        }
    }
    let header = Value::from(found).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &bytes].concat()
}

#[tokio::test]
async fn ranks_have_experts_of_their_own() {
    let _turn = turns::shared().await;
    let parent = tempfile::tempdir().expect("a folder");
    let folders = parent.path().canonicalize().expect("real");
    let folder = folders.join("mixture");
    mixture_of_demo(&folder);
    let options = options()
        .set("--model-path", folder.to_str().expect("UTF-8"))
        .set("--served-model-name", MODEL)
        .set("--weight-update-dir", folders.to_str().expect("UTF-8"))
        .set("--tp-size", "2")
        .set("--ep-size", "2");
    let server = Server::start(options).await;
    let body = counting(&json!({"logprobs": true}));
    let alone = server.ok(CHAT, &body).await["choices"].clone();
    assert_eq!(alone[0]["message"]["content"], COUNTED);
    let together = join_all((0..6).map(|_| server.ok(CHAT, &body))).await;
    assert!(together.iter().all(|answer| answer["choices"] == alone));
    let update = json!({"model_path": "mixture"});
    server.ok("/update_weights_from_disk", &update).await;
    let updated = server.ok(CHAT, &body).await;
    assert_eq!(updated["choices"], alone);
    let info = server.get("/server_info").await.ok();
    assert_eq!(info["ep_size"], 2);
    assert!(server.log().contains("2 groups"), "{}", server.log());
}
