//! Calls for letters between two ranks.

use std::ffi::c_int;

use super::asked::{self, Asked, What};
use super::kill::When;
use super::post::Letter;
use super::values::Kind;
use super::{invalid, member};
use crate::abi::{Answer, Handle};
use crate::world::enter;

/// Asks for a letter to another rank, or from it: `count` values of type `kind`.
pub(super) fn ask(
    handle: Handle,
    stream: Handle,
    sends: bool,
    at: usize,
    (count, kind): (usize, c_int),
    peer: c_int,
) -> Answer {
    let member = member(handle)?;
    member.kill.at(When::Asked);
    member.falters()?;
    let known = usize::try_from(peer)
        .ok()
        .filter(|peer| *peer < member.size);
    let peer = known.ok_or_else(|| invalid(format!("there is no rank {peer}")))?;
    member.taken.letter(sends, peer)?;
    let bytes = count * Kind::new(kind)?.bytes();
    enter()?.memory.check(at, bytes)?;
    let letter = Letter {
        sends,
        peer,
        at,
        bytes,
    };
    asked::ask(Asked {
        member,
        stream,
        what: What::Letter(letter),
    })
}
