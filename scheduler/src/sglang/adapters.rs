//! Adapters in SGLang's protocol. An adapter's id is its name.

use lockstep_proto::pb::{
    lockstep::{AdapterList, AdapterReply, LoadAdapterRequest, LoadedAdapter, adapter_reply},
    sglang::grpc::scheduler::{
        ListLoadedLoRaAdaptersResponse, LoadLoRaAdapterRequest, LoadLoRaAdapterResponse,
        LoadedLoRaAdapter, UnloadLoRaAdapterRequest, UnloadLoRaAdapterResponse,
    },
};
use lockstep_types::request::RequestError;
use tonic::Status;

use crate::inbox::{AdapterCommand, Command, Commands};

/// Loads an adapter, as `/v1/load_lora_adapter` does.
pub async fn load(
    commands: &Commands,
    wire: LoadLoRaAdapterRequest,
) -> Result<LoadLoRaAdapterResponse, Status> {
    let name = name(wire.lora_name, &wire.lora_id)?;
    let wanted = LoadAdapterRequest {
        name: name.clone(),
        path: wire.lora_path,
    };
    let ask = |reply| Command::Adapters(AdapterCommand::Load { wanted, reply });
    let loaded = list(commands.ask(ask).await?)?;
    Ok(LoadLoRaAdapterResponse {
        success: true,
        message: format!("Adapter `{name}` is loaded."),
        loaded_lora_ids: names(loaded),
    })
}

/// Unloads an adapter, as `/v1/unload_lora_adapter` does.
pub async fn unload(
    commands: &Commands,
    wire: UnloadLoRaAdapterRequest,
) -> Result<UnloadLoRaAdapterResponse, Status> {
    let name = name(wire.lora_name, &wire.lora_id)?;
    let ask = |reply| {
        let name = name.clone();
        Command::Adapters(AdapterCommand::Unload { name, reply })
    };
    let left = list(commands.ask(ask).await?)?;
    Ok(UnloadLoRaAdapterResponse {
        success: true,
        message: format!("Adapter `{name}` is unloaded."),
        loaded_lora_ids: names(left),
    })
}

/// Lists the adapters that requests may name.
pub async fn loaded(commands: &Commands) -> Result<ListLoadedLoRaAdaptersResponse, Status> {
    let ask = |reply| Command::Adapters(AdapterCommand::List { reply });
    let list = commands.ask(ask).await?;
    let adapter = |LoadedAdapter { name, path, .. }| LoadedLoRaAdapter {
        lora_id: name.clone(),
        lora_name: name,
        lora_path: path,
        // None is evicted.
        pinned: true,
    };
    Ok(ListLoadedLoRaAdaptersResponse {
        loaded_adapters: list.adapters.into_iter().map(adapter).collect(),
    })
}

/// Returns the name of an adapter from its two fields.
fn name(name: String, id: &str) -> Result<String, Status> {
    match (name.is_empty(), id.is_empty()) {
        (true, false) => Ok(id.to_owned()),
        (false, false) if name != id => Err(Status::invalid_argument(
            "lora_id: an adapter's id is its name on this server; leave it out",
        )),
        _ => Ok(name),
    }
}

fn list(reply: AdapterReply) -> Result<AdapterList, Status> {
    match reply.kind {
        Some(adapter_reply::Kind::Adapters(list)) => Ok(list),
        Some(adapter_reply::Kind::Error(error)) => {
            Err(lockstep_proto::status(RequestError::from(error)))
        }
        None => Err(Status::internal("the answer says nothing")),
    }
}

fn names(list: AdapterList) -> Vec<String> {
    list.adapters
        .into_iter()
        .map(|adapter| adapter.name)
        .collect()
}
