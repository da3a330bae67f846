//! How large what a client's message describes is, found out before anything is
//! built of it: an empty message takes two bytes on the wire and tens of bytes in
//! memory.
//!
//! Where messages lie in messages the descriptors say, which reflection needs
//! anyway: in bytes alone a text can look like anything.

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

/// The services whose clients may be anybody.
const PUBLIC: [&str; 2] = ["Inference", "SglangScheduler"];

/// As deep as prost decodes.
const DEPTH: u32 = 100;

static SHAPES: LazyLock<Shapes> =
    LazyLock::new(|| Shapes::new(&[LOCKSTEP_DESCRIPTORS, SGLANG_DESCRIPTORS]));

/// Checks the bytes of a message called `name`, which stands without a dot before
/// it. Messages that no client sends may have any number of parts, and ones that
/// are damaged are left to who decodes them.
///
/// # Errors
/// INVALID_ARGUMENT beyond [`PUBLIC_MESSAGE_PARTS`].
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

/// Which fields of messages are messages.
struct Shapes {
    /// For each message: its fields' numbers, and which message they hold.
    fields: Vec<BTreeMap<u32, usize>>,
    /// What clients send, by its name.
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

    /// Adds what is of a length of its own in a message: texts, lists of numbers,
    /// messages and what these hold. Ends early where the message is damaged, as
    /// its decoding does, and beyond the limit.
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

/// All messages below the package or message `within`, by their full names.
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
