//! The handshake, in which two ranks prove to each other that they belong to one group.
//!
//! ```text
//! acceptor  → hello: magic, nonce
//! connector → claim: ranks, size, capacity, group digest, nonce, proof
//! acceptor  → verdict: accepted or why not, proof
//! ```
//!
//! Each proof is an HMAC of both nonces and the whole claim under the shared secret, with a
//! label per side. The acceptor says nothing that depends on the secret before the connector
//! has proved that it knows the secret.

use std::io::{Read, Write};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::mac::hmac;

const MAGIC: [u8; 8] = *b"lockstc3";
const NONCE: usize = 32;
const PROOF: usize = 32;
/// Bytes of a claim: connector's rank, acceptor's rank, size and capacity, 8 bytes each, and
/// the group's digest.
const CLAIM: usize = 4 * 8 + 32;
/// Bytes that the connector sends before it is told if it may join.
pub(crate) const ANSWER: usize = CLAIM + NONCE + PROOF;

/// Random bytes that one side's proof has to cover.
pub(crate) type Nonce = [u8; NONCE];

/// The identity that a rank claims.
pub(crate) struct Identity<'a> {
    pub rank: usize,
    pub size: usize,
    capacity: usize,
    group: [u8; 32],
    secret: &'a [u8],
}

/// Reasons why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The connection broke. Another try may succeed.
    #[error("{0}")]
    Connection(#[from] std::io::Error),
    /// The other side is not a fitting rank, or says that this one is not.
    #[error("{0}")]
    Refused(Refusal),
}

/// The part that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub(crate) enum Refusal {
    #[error("the secrets differ")]
    Secret = 1,
    #[error("the group ids differ")]
    Group = 2,
    #[error("the sizes of the group or the values of max_elements differ")]
    Settings = 3,
    #[error("the ranks don't fit: the address lists differ or a rank was given twice")]
    Rank = 4,
    #[error("it speaks another protocol or version")]
    Protocol = 5,
}

impl<'a> Identity<'a> {
    pub fn new(
        rank: usize,
        size: usize,
        capacity: usize,
        group_id: &str,
        secret: &'a [u8],
    ) -> Self {
        let group = Sha256::digest(group_id).into();
        Self {
            rank,
            size,
            capacity,
            group,
            secret,
        }
    }

    /// Proves this rank to a rank that should be `acceptor`, and checks that rank's proof.
    pub fn connect(
        &self,
        stream: &mut (impl Read + Write),
        acceptor: usize,
    ) -> Result<(), Failure> {
        let hello: [u8; 8 + NONCE] = read(stream)?;
        let (magic, their_nonce) = hello.split_at(8);
        if magic != MAGIC {
            return Err(Failure::Refused(Refusal::Protocol));
        }
        let claim = self.claim(acceptor);
        let nonce = nonce()?;
        let prove = |label: &[u8]| hmac(self.secret, &[label, their_nonce, &nonce, &claim]);
        let message = [&claim[..], &nonce, &prove(b"connect")].concat();
        stream.write_all(&message)?;
        let [verdict] = read(stream)?;
        let proof: [u8; PROOF] = read(stream)?;
        if let Some(refusal) = Refusal::from_number(verdict) {
            return Err(Failure::Refused(refusal));
        }
        check_proof(&proof, &prove(b"accept"))
    }

    /// Begins to let a rank prove itself: sends the hello. Returns the nonce that the answer
    /// has to prove.
    pub fn greet(stream: &mut impl Write) -> Result<Nonce, Failure> {
        let nonce = nonce()?;
        stream.write_all(&[&MAGIC[..], &nonce].concat())?;
        Ok(nonce)
    }

    /// Checks the `answer` of the rank that was sent `nonce`. Returns the rank's number. `free`
    /// returns true for a number that is still to come.
    pub fn judge(
        &self,
        stream: &mut impl Write,
        nonce: &Nonce,
        answer: &[u8; ANSWER],
        free: impl Fn(usize) -> bool,
    ) -> Result<usize, Failure> {
        let mut answer = &answer[..];
        let claim: [u8; CLAIM] = read(&mut answer)?;
        let their_nonce: Nonce = read(&mut answer)?;
        let proof: [u8; PROOF] = read(&mut answer)?;
        let prove = |label: &[u8]| hmac(self.secret, &[label, nonce, &their_nonce, &claim]);
        let verdict = check_proof(&proof, &prove(b"connect"));
        let verdict = verdict.and_then(|()| self.fits(&claim, free));
        match verdict {
            Ok(rank) => {
                stream.write_all(&[&[0][..], &prove(b"accept")].concat())?;
                Ok(rank)
            }
            Err(failure) => {
                if let Failure::Refused(refusal) = &failure {
                    stream.write_all(&[&[*refusal as u8][..], &[0; PROOF]].concat())?;
                }
                Err(failure)
            }
        }
    }

    fn claim(&self, acceptor: usize) -> [u8; CLAIM] {
        let mut claim = [0; CLAIM];
        let numbers = [self.rank, acceptor, self.size, self.capacity];
        for (bytes, number) in claim.chunks_exact_mut(8).zip(numbers) {
            bytes.copy_from_slice(&(number as u64).to_le_bytes());
        }
        claim[4 * 8..].copy_from_slice(&self.group);
        claim
    }

    fn fits(&self, claim: &[u8; CLAIM], free: impl Fn(usize) -> bool) -> Result<usize, Failure> {
        let (words, _) = claim.as_chunks::<8>();
        let number = |index: usize| u64::from_le_bytes(words[index]);
        if claim[4 * 8..] != self.group {
            return Err(Failure::Refused(Refusal::Group));
        }
        if (number(2), number(3)) != (self.size as u64, self.capacity as u64) {
            return Err(Failure::Refused(Refusal::Settings));
        }
        let rank = (self.rank + 1..self.size).find(|&rank| rank as u64 == number(0));
        match rank {
            Some(rank) if number(1) == self.rank as u64 && free(rank) => Ok(rank),
            _ => Err(Failure::Refused(Refusal::Rank)),
        }
    }
}

impl Refusal {
    fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => None,
            1 => Some(Self::Secret),
            2 => Some(Self::Group),
            3 => Some(Self::Settings),
            4 => Some(Self::Rank),
            _ => Some(Self::Protocol),
        }
    }
}

fn check_proof(given: &[u8; PROOF], expected: &[u8; PROOF]) -> Result<(), Failure> {
    if bool::from(given.ct_eq(expected)) {
        return Ok(());
    }
    Err(Failure::Refused(Refusal::Secret))
}

fn read<const N: usize>(stream: &mut impl Read) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn nonce() -> Result<Nonce, Failure> {
    let mut nonce = [0; NONCE];
    let flags = rustix::rand::GetRandomFlags::empty();
    // Requests of up to 256 bytes are never cut short.
    let count = rustix::rand::getrandom(&mut nonce, flags).map_err(std::io::Error::from)?;
    if count == NONCE {
        Ok(nonce)
    } else {
        Err(std::io::Error::other("no random bytes").into())
    }
}

#[cfg(test)]
mod tests;
