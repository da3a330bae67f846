use futures::{FutureExt as _, stream};
use prost::{Message, Name};
use tonic::{
    Code, Status, Streaming,
    codec::{Codec, EncodeBody},
};
use tonic_prost::ProstCodec;

use super::SliceCodec;
use crate::pb::lockstep::{
    Abort, GenerateRequest, RankResult, SlotOutput, WorkerCommand, WorkerHello,
};

/// Writes messages with `encoder`'s codec and returns what `decoder`'s codec reads.
fn pass<T, U>(
    messages: Vec<T>,
    mut encoder: impl Codec<Encode = T>,
    mut decoder: impl Codec<Decode = U>,
) -> Result<Vec<U>, Status>
where
    T: Send + 'static,
    U: Send + 'static,
{
    let messages = stream::iter(messages.into_iter().map(Ok));
    let body = EncodeBody::new_client(encoder.encoder(), messages, None, None);
    let mut stream = Streaming::new_request(decoder.decoder(), body, None, None);
    let mut read = Vec::new();
    loop {
        let next = stream.message().now_or_never();
        match next.expect("all messages are there at once")? {
            Some(message) => read.push(message),
            None => return Ok(read),
        }
    }
}

/// Answers with no row, with few rows and with many, so that a short answer follows a long one.
fn answers() -> Vec<RankResult> {
    let rows = [0, 3, 20_000, 1, 0, 256];
    let output = |slot| SlotOutput {
        slot,
        token_ids: vec![slot * 7; slot as usize % 4],
        ..Default::default()
    };
    let answer = |(rows, step)| RankResult {
        step,
        outputs: (0..rows).map(output).collect(),
        ..Default::default()
    };
    rows.into_iter().zip(1..).map(answer).collect()
}

#[test]
fn the_bytes_are_those_of_tonics_codec() {
    type Ours = SliceCodec<RankResult, RankResult>;
    type Tonics = ProstCodec<RankResult, RankResult>;
    let reads = [
        pass(answers(), Ours::default(), Ours::default()),
        pass(answers(), Ours::default(), Tonics::default()),
        pass(answers(), Tonics::default(), Ours::default()),
    ];
    for read in reads {
        assert_eq!(read.expect("read"), answers());
    }
}

#[test]
fn requests_of_too_many_parts_are_refused_before_they_are_built() {
    type Codec = SliceCodec<GenerateRequest, GenerateRequest>;
    let stops = |count| GenerateRequest {
        stop: vec![String::new(); count],
        ..Default::default()
    };
    let read = |count| pass(vec![stops(count)], Codec::default(), Codec::default());
    assert_eq!(read(65_536).expect("allowed"), [stops(65_536)]);
    let refused = read(65_537).map(drop).expect_err("one more");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[test]
fn bytes_that_are_another_message_are_an_internal_error() {
    fn refusal<T, U>(message: T) -> Code
    where
        T: Message + Name + Default + 'static,
        U: Message + Name + Default + 'static,
    {
        let written = SliceCodec::<T, T>::default();
        let read = pass(vec![message], written, SliceCodec::<U, U>::default());
        read.err().expect("refused").code()
    }
    let number = Abort { request: 7 };
    assert_eq!(refusal::<_, WorkerCommand>(number), Code::Internal);
    // The bytes are digests that end in the middle of a field.
    let text = WorkerHello {
        config_hash: "x".to_owned(),
        ..Default::default()
    };
    assert_eq!(refusal::<_, RankResult>(text), Code::Internal);
}
