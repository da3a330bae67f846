//! Counts the parts of a client's message before anything is built of them: an empty message
//! takes two bytes on the wire and tens of bytes in memory.
//!
//! Descriptors, which reflection needs anyway, say which fields hold messages. The bytes alone
//! can't tell: a text can look like anything.

use std::{collections::BTreeMap, sync::LazyLock};

use prost::{
    Message as _,
    encoding::{WireType, decode_key, decode_varint},
};
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use tonic::Status;

use crate::{
    limits::PUBLIC_MESSAGE_PARTS,
    pb::{LOCKSTEP_DESCRIPTORS, SGLANG_DESCRIPTORS},
};

/// Services that strangers may call.
const PUBLIC: [&str; 2] = ["Inference", "SglangScheduler"];

/// Deepest nesting that is counted, the limit of prost's decoding.
const DEPTH: u32 = 100;

static SHAPES: LazyLock<Shapes> =
    LazyLock::new(|| Shapes::new(&[LOCKSTEP_DESCRIPTORS, SGLANG_DESCRIPTORS]));

/// Checks the bytes of a message called `name`, without a dot in front. Messages that no client
/// sends may have any number of parts. Damaged messages are left to their decoder.
///
/// # Errors
/// INVALID_ARGUMENT for more parts than [`PUBLIC_MESSAGE_PARTS`].
pub fn check(name: &str, message: &[u8]) -> Result<(), Status> {
    let Some(shape) = SHAPES.requests.get(name) else {
        return Ok(());
    };
    let mut parts = 0;
    SHAPES.count(message, *shape, DEPTH, &mut parts);
    if parts <= PUBLIC_MESSAGE_PARTS {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "The request has more than {PUBLIC_MESSAGE_PARTS} texts, lists and messages in it: send \
         less at once."
    )))
}

/// Nesting of messages: the fields that hold messages.
struct Shapes {
    /// For each message: numbers of such fields, each with the index of the message that it
    /// holds.
    fields: Vec<BTreeMap<u32, usize>>,
    /// Messages that clients send, by name.
    requests: BTreeMap<String, usize>,
}

impl Shapes {
    fn new(descriptors: &[&[u8]]) -> Self {
        let sets = descriptors
            .iter()
            .map(|set| FileDescriptorSet::decode(*set));
        let files: Vec<_> = sets.flatten().flat_map(|set| set.file).collect();
        let mut messages = BTreeMap::new();
        for file in &files {
            collect(
                &format!(".{}", file.package()),
                &file.message_type,
                &mut messages,
            );
        }
        let at: BTreeMap<&str, usize> = messages.keys().map(String::as_str).zip(0..).collect();
        let nested = |message: &&DescriptorProto| {
            let fields = message.field.iter();
            let nested = fields.filter(|field| field.r#type() == Type::Message);
            nested
                .filter_map(|field| {
                    let number = u32::try_from(field.number()).ok()?;
                    Some((number, *at.get(field.type_name())?))
                })
                .collect()
        };
        let services = files.iter().flat_map(|file| &file.service);
        let methods = services
            .filter(|service| PUBLIC.contains(&service.name()))
            .flat_map(|service| &service.method);
        let request = |name: &str| Some((name.strip_prefix('.')?.to_owned(), *at.get(name)?));
        Self {
            fields: messages.values().map(nested).collect(),
            requests: methods
                .filter_map(|method| request(method.input_type()))
                .collect(),
        }
    }

    /// Counts the parts of a message: texts, lists of numbers, messages and the parts of these.
    /// Ends early beyond the limit, and where the message is damaged, as decoding does.
    fn count(&self, mut data: &[u8], shape: usize, depth: u32, parts: &mut usize) -> Option<()> {
        let fields = self.fields.get(shape)?;
        // Groups are skipped whole; no message here has one.
        let mut groups = 0usize;
        while !data.is_empty() {
            let (field, kind) = decode_key(&mut data).ok()?;
            let skip = match kind {
                WireType::Varint => decode_varint(&mut data).map(|_| 0).ok()?,
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::LengthDelimited => decode_varint(&mut data).ok()?,
                WireType::StartGroup => {
                    groups += 1;
                    0
                }
                WireType::EndGroup => {
                    groups = groups.checked_sub(1)?;
                    0
                }
            };
            let (inner, rest) = data.split_at_checked(usize::try_from(skip).ok()?)?;
            data = rest;
            if kind != WireType::LengthDelimited || groups > 0 {
                continue;
            }
            *parts += 1;
            if *parts > PUBLIC_MESSAGE_PARTS {
                return None;
            }
            if let Some(shape) = fields.get(&field) {
                self.count(inner, *shape, depth.checked_sub(1)?, parts)?;
            }
        }
        Some(())
    }
}

/// Collects all messages below the package or message `within`, by their full names.
fn collect<'a>(
    within: &str,
    messages: &'a [DescriptorProto],
    into: &mut BTreeMap<String, &'a DescriptorProto>,
) {
    for message in messages {
        let name = format!("{within}.{}", message.name());
        collect(&name, &message.nested_type, into);
        into.insert(name, message);
    }
}

#[cfg(test)]
mod tests;
