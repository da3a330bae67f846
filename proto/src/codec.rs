//! Protocol Buffers for tonic, read and written in plain slices.
//!
//! tonic hands out its stream's buffer. Each byte read from or written to that buffer is a call
//! with its bookkeeping of shared memory. A plan or a result of 256 rows has some thousand
//! fields of a byte or two. So these calls took most of the time between scheduler and worker.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _};
use prost::{Message, Name};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::{limits::PUBLIC_MESSAGE_PARTS, parts};

/// Codec that sends messages `T` and receives messages `U`; the bytes are those of tonic's own
/// codec.
#[derive(Debug)]
pub struct SliceCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SliceCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SliceCodec<T, U>
where
    T: Message + 'static,
    U: Message + Name + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SliceEncoder<T>;
    type Decoder = SliceDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        SliceEncoder {
            message: Vec::new(),
            sends: PhantomData,
        }
    }

    fn decoder(&mut self) -> Self::Decoder {
        SliceDecoder(PhantomData)
    }
}

/// Encoder of one stream's messages.
#[derive(Debug)]
pub struct SliceEncoder<T> {
    /// Bytes of the last message; their memory serves the next one.
    message: Vec<u8>,
    sends: PhantomData<T>,
}

impl<T: Message> Encoder for SliceEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.message.clear();
        item.encode(&mut self.message)
            .map_err(|error| Status::internal(error.to_string()))?;
        out.put_slice(&self.message);
        Ok(())
    }
}

/// Decoder of one stream's messages.
#[derive(Debug)]
pub struct SliceDecoder<U>(PhantomData<U>);

impl<U: Message + Name + Default> Decoder for SliceDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = message.copy_to_bytes(message.remaining());
        // A part takes at least two bytes, so only long messages need to be counted.
        if message.len() > 2 * PUBLIC_MESSAGE_PARTS {
            parts::check(&U::full_name(), &message)?;
        }
        // gRPC wants INTERNAL for bytes that are no message.
        U::decode(&message[..])
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
