//! Changes of the prefix caches as messages, for gateways that route requests by cached
//! prefixes.

use std::{
    pin::Pin,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::{Stream, StreamExt as _, stream};
use lockstep_planner::CacheEvent;
use lockstep_proto::pb::smg::grpc::common::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch,
    kv_cache_event::Data,
};
use lockstep_types::adapter::Adapter;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::{adapters::AdapterNames, kv_events::CacheChanges};

/// Most tokens and hashes of one batch: a few megabytes, however large the cache is.
const MOST: usize = 1 << 17;

/// Stream that a subscriber reads.
pub type Batches = Pin<Box<dyn Stream<Item = Result<KvEventBatch, Status>> + Send>>;

/// Makes the stream of a subscriber, which keeps `place` as long as it lasts. The first batches
/// have the contents of each DP rank's cache.
pub fn batches(changes: mpsc::Receiver<CacheChanges>, place: OwnedSemaphorePermit) -> Batches {
    let mut subscription = Subscription {
        sequence: 0,
        event_id: 0,
        _place: place,
    };
    ReceiverStream::new(changes)
        .flat_map(|changes| {
            let CacheChanges {
                dp_rank,
                events,
                adapters,
            } = changes;
            let pieces = stream::iter(pieces(events));
            pieces.map(move |events| (dp_rank, events, adapters.clone()))
        })
        .map(move |(dp_rank, events, adapters)| Ok(subscription.batch(dp_rank, events, &adapters)))
        .boxed()
}

/// Numbers the batches of a stream from 1, and each event within the stream.
struct Subscription {
    sequence: u64,
    event_id: u64,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    fn batch(
        &mut self,
        dp_rank: u32,
        events: Vec<CacheEvent>,
        adapters: &AdapterNames,
    ) -> KvEventBatch {
        self.sequence += 1;
        let wrap = |event| {
            self.event_id += 1;
            KvCacheEvent {
                event_id: self.event_id,
                data: Some(data(event, adapters)),
            }
        };
        KvEventBatch {
            sequence_number: self.sequence,
            timestamp: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            events: events.into_iter().map(wrap).collect(),
            dp_rank: i32::try_from(dp_rank).ok(),
            ..Default::default()
        }
    }
}

/// Cuts events into batches that fit a message. An empty list becomes one empty batch.
fn pieces(events: Vec<CacheEvent>) -> Vec<Vec<CacheEvent>> {
    let (mut pieces, mut piece, mut room) = (Vec::new(), Vec::new(), MOST);
    for event in events.into_iter().flat_map(cut) {
        let size = match &event {
            CacheEvent::BlockStored {
                blocks,
                block_size,
                cache_salt,
                ..
            } => {
                // Four bytes of a salt take the room of a token.
                let salt = cache_salt.as_ref().map_or(0, |salt| salt.len() / 4);
                blocks.len() * *block_size as usize + salt
            }
            CacheEvent::BlockRemoved { hashes } => hashes.len(),
            CacheEvent::Cleared => 1,
        };
        if size > room && !piece.is_empty() {
            pieces.push(std::mem::take(&mut piece));
            room = MOST;
        }
        room = room.saturating_sub(size);
        piece.push(event);
    }
    pieces.push(piece);
    pieces
}

/// Cuts one event into events that fit a message. A run of blocks continues where the piece
/// before it ended.
fn cut(event: CacheEvent) -> Vec<CacheEvent> {
    match event {
        CacheEvent::BlockStored {
            mut parent,
            blocks,
            block_size,
            cache_salt,
            adapter,
        } => blocks
            .chunks((MOST / block_size.max(1) as usize).max(1))
            .map(|run| {
                let last = run.last().map(|block| block.hash);
                CacheEvent::BlockStored {
                    parent: std::mem::replace(&mut parent, last),
                    blocks: run.to_vec(),
                    block_size,
                    cache_salt: cache_salt.clone(),
                    adapter,
                }
            })
            .collect(),
        CacheEvent::BlockRemoved { hashes } => hashes
            .chunks(MOST)
            .map(|hashes| CacheEvent::BlockRemoved {
                hashes: hashes.to_vec(),
            })
            .collect(),
        CacheEvent::Cleared => vec![CacheEvent::Cleared],
    }
}

fn data(event: CacheEvent, adapters: &AdapterNames) -> Data {
    match event {
        CacheEvent::BlockStored {
            parent,
            blocks,
            block_size,
            cache_salt,
            adapter,
        } => Data::Stored(KvBlocksStored {
            parent_block_hash: parent.map(u64::cast_signed),
            lora_name: adapter.and_then(|content| adapters.get(&content).cloned()),
            cache_salt: cache_salt.map(|salt| salt.as_ref().to_owned()),
            blocks: blocks
                .into_iter()
                .map(|block| KvBlock {
                    block_hash: block.hash.cast_signed(),
                    token_ids: block.token_ids,
                    block_size: i32::try_from(block_size).unwrap_or(i32::MAX),
                    lora_id: adapter.map(lora_id),
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

/// Returns the number by which events tell adapters apart: half of the content's hash.
fn lora_id(content: u128) -> i64 {
    let (low, _) = Adapter { place: 0, content }.content_halves();
    low.cast_signed()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockstep_planner::StoredBlock;

    use super::*;

    fn stored(parent: Option<u64>, hashes: std::ops::Range<u64>, block_size: u32) -> CacheEvent {
        CacheEvent::BlockStored {
            parent,
            blocks: hashes
                .map(|hash| StoredBlock {
                    hash,
                    token_ids: Vec::new(),
                })
                .collect(),
            block_size,
            cache_salt: Some("salt".into()),
            adapter: Some(7),
        }
    }

    #[test]
    fn a_large_cache_comes_in_batches_that_fit_and_hang_together() {
        let per = (MOST / 64) as u64;
        let pieces = pieces(vec![
            stored(Some(7), 100..100 + per + 5, 64),
            CacheEvent::Cleared,
        ]);
        let expected = [
            vec![stored(Some(7), 100..100 + per, 64)],
            vec![
                stored(Some(99 + per), 100 + per..100 + per + 5, 64),
                CacheEvent::Cleared,
            ],
        ];
        assert_eq!(pieces, expected);
    }

    /// 1,024 blocks of one token, each with a salt of 1,024 bytes, are more than a batch.
    #[test]
    fn long_salts_fill_batches_too() {
        let salt: std::sync::Arc<str> = "x".repeat(1_024).into();
        let event = |hash| match stored(None, hash..hash + 1, 1) {
            CacheEvent::BlockStored {
                parent,
                blocks,
                block_size,
                ..
            } => CacheEvent::BlockStored {
                parent,
                blocks,
                block_size,
                cache_salt: Some(salt.clone()),
                adapter: None,
            },
            other => other,
        };
        let pieces = pieces((0..1_024).map(event).collect());
        let lengths: Vec<usize> = pieces.iter().map(Vec::len).collect();
        assert_eq!(lengths, [510, 510, 4]);
    }

    #[test]
    fn the_salt_and_the_adapter_of_a_block_are_told() {
        for (known, name) in [(7, Some("a")), (8, None)] {
            let names = [(known, "a".to_owned())].into();
            let Data::Stored(told) = data(stored(None, 0..1, 1), &Arc::new(names)) else {
                panic!("not stored");
            };
            assert_eq!(told.cache_salt.as_deref(), Some("salt"));
            assert_eq!(told.lora_name.as_deref(), name);
            assert_eq!(told.blocks[0].lora_id, Some(7));
        }
    }

    #[test]
    fn an_empty_cache_is_one_empty_batch() {
        assert_eq!(pieces(Vec::new()), [Vec::new()]);
    }
}
