//! The messages in a gRPC body, by their heads. A head has one byte of flags and four
//! bytes of length (gRPC over HTTP/2, "Length-Prefixed-Message").

const HEAD: usize = 5;

/// Reads along with a gRPC body.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    head: [u8; HEAD],
    /// Bytes of the current head that have come.
    have: usize,
    /// Bytes of the current message that are still to come.
    left: usize,
}

impl Messages {
    /// Returns the bytes of all messages that begin in `data`. Their reader allocates
    /// all of them at once.
    pub(crate) fn announced(&mut self, mut data: &[u8]) -> usize {
        let mut announced = 0usize;
        while !data.is_empty() {
            if self.left > 0 {
                let skip = self.left.min(data.len());
                self.left -= skip;
                data = &data[skip..];
                continue;
            }
            let take = (HEAD - self.have).min(data.len());
            self.head[self.have..self.have + take].copy_from_slice(&data[..take]);
            self.have += take;
            data = &data[take..];
            if self.have == HEAD {
                let [_, a, b, c, d] = self.head;
                self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                self.have = 0;
                announced = announced.saturating_add(self.left);
            }
        }
        announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_it_is_cut_the_same_is_announced() {
        let lengths = [0u32, 1, 300, 0, 70_000];
        let body: Vec<u8> = lengths
            .iter()
            .flat_map(|length| {
                let mut message = vec![0];
                message.extend(length.to_be_bytes());
                message.resize(HEAD + *length as usize, 9);
                message
            })
            .collect();
        let all: u32 = lengths.iter().sum();
        for size in [1, 2, 4, 5, 6, 7, 299, 300, 16_384, body.len()] {
            let mut messages = Messages::default();
            let announced = body.chunks(size).map(|part| messages.announced(part));
            assert_eq!(announced.sum::<usize>(), all as usize, "{size}");
        }
        let mut messages = Messages::default();
        assert_eq!(
            messages.announced(&[0, 0xff, 0xff, 0xff, 0xff]),
            u32::MAX as usize
        );
    }
}
