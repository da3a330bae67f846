//! D = alpha · op(A) · op(B) + beta · C, and perhaps a bias, column by column.

use half::bf16;

use super::INVALID_VALUE;
use super::descriptors::{Descriptor, Kind, Layout};
use crate::abi::{Answer, Refusal};
use crate::world::codes::{ILLEGAL_ADDRESS, MISALIGNED_ADDRESS};
use crate::world::lock;

/// First of the opaque words of an algorithm.
const MAGIC: u64 = 0x6c6f_636b_7374_6570;
/// Bytes of working memory for sums in parts.
const PARTS_WORKSPACE: usize = 1 << 20;
/// Number of columns from which on sums in parts are offered first.
const MANY_COLUMNS: usize = 100;

/// Order of a sum's terms. The bits of a result depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// From the first product to the last.
    InOrder,
    /// Two halves, and then their sum. A matrix with an odd number of rows is served only with
    /// many columns.
    InParts,
}

impl Algorithm {
    /// All algorithms, the best for `columns` columns first.
    pub(super) fn for_columns(columns: usize) -> [Self; 2] {
        if columns < MANY_COLUMNS {
            [Self::InOrder, Self::InParts]
        } else {
            [Self::InParts, Self::InOrder]
        }
    }

    /// Returns true if the algorithm serves `product`.
    pub(super) fn serves(self, product: &Product) -> bool {
        let many = product.columns() >= MANY_COLUMNS;
        let counted = [product.d.rows, product.d.columns, product.depth];
        counted.iter().all(|count| i32::try_from(*count).is_ok())
            && (self == Self::InOrder || many || product.d.rows.is_multiple_of(2))
    }

    /// Bytes of working memory.
    pub(super) fn workspace(self) -> usize {
        match self {
            Self::InOrder => 0,
            Self::InParts => PARTS_WORKSPACE,
        }
    }

    pub(super) fn encode(self) -> [u64; 8] {
        [MAGIC, u64::from(self == Self::InParts), 0, 0, 0, 0, 0, 0]
    }

    pub(super) fn decode(words: [u64; 8]) -> Option<Self> {
        match words {
            [MAGIC, 0, ..] => Some(Self::InOrder),
            [MAGIC, 1, ..] => Some(Self::InParts),
            _ => None,
        }
    }

    fn sum(self, terms: &[f32]) -> f32 {
        let in_order = |terms: &[f32]| terms.iter().fold(0.0, |sum, term| sum + term);
        match self {
            Self::InOrder => in_order(terms),
            Self::InParts => {
                let (first, second) = terms.split_at(terms.len() / 2);
                in_order(first) + in_order(second)
            }
        }
    }
}

/// Scales, and addresses of the matrices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) c: usize,
    pub(super) d: usize,
    pub(super) workspace: usize,
}

/// The shape of a product whose matrices fit together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    descriptor: Descriptor,
    a: Layout,
    b: Layout,
    c: Layout,
    d: Layout,
    /// Number of terms of a sum.
    depth: usize,
}

impl Product {
    pub(super) fn new(descriptor: Descriptor, layouts: [Layout; 4]) -> Answer<Self> {
        let [a, b, c, d] = layouts;
        let shape = |of: &Layout, transposed: bool| match transposed {
            true => (of.columns, of.rows),
            false => (of.rows, of.columns),
        };
        let (rows, depth) = shape(&a, descriptor.transposed_a);
        let (other, columns) = shape(&b, descriptor.transposed_b);
        let fits = |of: &Layout| (of.rows, of.columns) == (rows, columns);
        let kinds = a.kind == b.kind && c.kind == d.kind;
        if depth != other || !fits(&c) || !fits(&d) || !kinds {
            let reason = format!("matrices that don't fit together: {layouts:?}");
            return Err(Refusal::new(INVALID_VALUE, reason));
        }
        if descriptor.adds_bias && descriptor.bias.is_none() {
            return Err(Refusal::new(INVALID_VALUE, "a bias from nowhere"));
        }
        Ok(Self {
            descriptor,
            a,
            b,
            c,
            d,
            depth,
        })
    }

    /// Columns of the result.
    pub(super) fn columns(&self) -> usize {
        self.d.columns
    }

    /// Address and layout of the bias, a column of values, if there is one.
    fn bias(&self) -> Option<(usize, Layout)> {
        let Descriptor {
            bias,
            bias_kind,
            adds_bias,
            ..
        } = self.descriptor;
        let rows = self.d.rows;
        let layout = Layout {
            kind: bias_kind.unwrap_or(self.d.kind),
            rows,
            columns: 1,
            ld: rows,
        };
        bias.filter(|_| adds_bias).map(|at| (at, layout))
    }

    /// Refuses operands that lie outside of allocations.
    fn check(&self, at: &Operands, algorithm: Algorithm) -> Answer {
        let world = lock();
        let range = |at: usize, of: &Layout| (at, of.bytes(), of.kind);
        let mut ranges = vec![
            range(at.a, &self.a),
            range(at.b, &self.b),
            range(at.d, &self.d),
        ];
        if at.beta != 0.0 {
            ranges.push(range(at.c, &self.c));
        }
        ranges.push((at.workspace, algorithm.workspace(), Kind::F32));
        ranges.extend(self.bias().map(|(at, layout)| range(at, &layout)));
        for (address, bytes, kind) in ranges {
            let answer = world.memory.check(address, bytes);
            answer.map_err(|refusal| Refusal::new(ILLEGAL_ADDRESS, refusal.reason))?;
            if address % kind.bytes() != 0 {
                let reason = format!("a matrix of {kind:?} at {address:#x}");
                return Err(Refusal::new(MISALIGNED_ADDRESS, reason));
            }
        }
        Ok(())
    }

    /// Computes the whole result.
    pub(super) fn run(&self, at: &Operands, algorithm: Algorithm) -> Answer {
        self.check(at, algorithm)?;
        scribble(at.workspace, algorithm.workspace());
        let a = read(at.a, &self.a);
        let b = read(at.b, &self.b);
        let c = (at.beta != 0.0).then(|| read(at.c, &self.c));
        let bias = self.bias().map(|(at, layout)| read(at, &layout));
        let along = |layout: &Layout, by_rows: bool| if by_rows { 1 } else { layout.ld };
        // Steps from one term of a sum to the next, and from one sum to the next.
        let (transposed_a, transposed_b) =
            (self.descriptor.transposed_a, self.descriptor.transposed_b);
        let (a_term, a_row) = (along(&self.a, transposed_a), along(&self.a, !transposed_a));
        let (b_term, b_column) = (along(&self.b, !transposed_b), along(&self.b, transposed_b));
        let mut terms = vec![0.0; self.depth];
        for column in 0..self.d.columns {
            for row in 0..self.d.rows {
                let (left, right) = (&a[row * a_row..], &b[column * b_column..]);
                for (k, term) in terms.iter_mut().enumerate() {
                    *term = left[k * a_term] * right[k * b_term];
                }
                let mut value = at.alpha * algorithm.sum(&terms);
                if let Some(c) = &c {
                    value += at.beta * c[column * self.c.ld + row];
                }
                if let Some(bias) = &bias {
                    value += bias[row];
                }
                write(at.d, self.d.kind, column * self.d.ld + row, value);
            }
        }
        Ok(())
    }
}

/// All values of a matrix, and the values between its columns.
fn read(at: usize, layout: &Layout) -> Vec<f32> {
    let count = layout.bytes() / layout.kind.bytes();
    match layout.kind {
        // SAFETY: the range was checked to lie in an allocation, which starts at
        // a multiple of the values' size; any bits are a value.
        Kind::F32 => unsafe { std::slice::from_raw_parts(at as *const f32, count) }.to_vec(),
        Kind::Bf16 => {
            // SAFETY: as above.
            let bits = unsafe { std::slice::from_raw_parts(at as *const u16, count) };
            bits.iter()
                .map(|bits| bf16::from_bits(*bits).to_f32())
                .collect()
        }
    }
}

/// Overwrites working memory, as algorithms do.
fn scribble(at: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the range was checked to lie in an allocation.
        unsafe { (at as *mut u8).write_bytes(0xa5, bytes) }
    }
}

fn write(at: usize, kind: Kind, index: usize, value: f32) {
    let address = at + index * kind.bytes();
    // SAFETY: the range was checked to lie in an allocation.
    unsafe {
        match kind {
            Kind::F32 => (address as *mut f32).write_unaligned(value),
            Kind::Bf16 => {
                let bits = bf16::from_f32(value).to_bits();
                (address as *mut u16).write_unaligned(bits);
            }
        }
    }
}
