//! Prefix-cache changes for gateways that route by what is cached.

use std::{
    pin::Pin,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::{Stream, StreamExt as _};
use lockstep_planner::CacheEvent;
use lockstep_proto::pb::smg::grpc::common::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch,
    kv_cache_event::Data,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// What a subscriber reads.
pub type Batches = Pin<Box<dyn Stream<Item = Result<KvEventBatch, Status>> + Send>>;

/// Numbers the batches from 1 and each event within the stream. The first
/// batch tells what is cached already.
pub fn batches(events: mpsc::Receiver<Vec<CacheEvent>>) -> Batches {
    let mut sequence = 0;
    let mut event_id = 0;
    ReceiverStream::new(events)
        .map(move |events| {
            sequence += 1;
            let wrap = |event| {
                event_id += 1;
                KvCacheEvent {
                    event_id,
                    data: Some(data(event)),
                }
            };
            Ok(KvEventBatch {
                sequence_number: sequence,
                timestamp: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0.0, |since| since.as_secs_f64()),
                events: events.into_iter().map(wrap).collect(),
                dp_rank: Some(0),
                ..Default::default()
            })
        })
        .boxed()
}

fn data(event: CacheEvent) -> Data {
    match event {
        CacheEvent::BlockStored {
            parent,
            blocks,
            block_size,
        } => Data::Stored(KvBlocksStored {
            parent_block_hash: parent.map(u64::cast_signed),
            blocks: blocks
                .into_iter()
                .map(|block| KvBlock {
                    block_hash: block.hash.cast_signed(),
                    token_ids: block.token_ids,
                    block_size: i32::try_from(block_size).unwrap_or(i32::MAX),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }),
        CacheEvent::BlockRemoved { hashes } => Data::Removed(KvBlocksRemoved {
            block_hashes: hashes.into_iter().map(u64::cast_signed).collect(),
            ..Default::default()
        }),
        CacheEvent::Cleared => Data::Cleared(KvCacheCleared::default()),
    }
}
