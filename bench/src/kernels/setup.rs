//! Threads, clock, repetitions and formats, which all measurements share.

use clap::ValueEnum;
use lockstep_backend::{
    BackendError, Batch, CheckpointDtype, Codes, FactorType, GroupFormat, Holds, HostBlock,
    HostFloats, HostMatrix, InputLimits, MatrixRole, Minimum, WeightFormat,
};
use lockstep_collective::{Collective, Single};
use lockstep_devices::{Arithmetic, Clock, Collectives, Device, DeviceError, DeviceOptions};
use lockstep_types::{DeviceConfig, Dtype, Fp8Checkpoint, KvCacheDtype, Quantization};

use super::shape::Matrix;

/// What weights are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Weights {
    /// bfloat16.
    #[value(alias = "bfloat16")]
    Bf16,
    /// 32-bit float.
    #[value(alias = "float32")]
    F32,
    /// 8-bit integers with scales.
    Int8,
    /// 4-bit integers with scales; the output head is of 8-bit integers.
    Int4,
    /// 8-bit floats with scales, as checkpoints hold them; the output head is of bfloat16.
    Fp8,
    /// 4-bit floats with exponents, as checkpoints hold experts; the output head is of bfloat16.
    Mxfp4,
    /// 4-bit integers with scales as GGUF's Q4_0 has them; the output head too.
    #[value(name = "q4_0")]
    Q4_0,
    /// 4-bit integers with scales and minimums as GGUF's Q4_K has them; the output head is like
    /// Q6_K, as in files.
    #[value(name = "q4_k")]
    Q4K,
    /// Integers of up to 6 bits with scales as GGUF's Q6_K has them, in 8 bits; the output head too.
    #[value(name = "q6_k")]
    Q6K,
    /// 8-bit integers with scales as GGUF's Q8_0 has them; the output head too.
    #[value(name = "q8_0")]
    Q8_0,
}

/// What keys and values are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvFormat {
    /// bfloat16.
    #[value(alias = "bfloat16")]
    Bf16,
    /// 32-bit float.
    #[value(alias = "float32")]
    F32,
    /// 8-bit integers with scales.
    Int8,
}

impl Weights {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Fp8 => "fp8",
            Self::Mxfp4 => "mxfp4",
            Self::Q4_0 => "q4_0",
            Self::Q4K => "q4_k",
            Self::Q6K => "q6_k",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Arithmetic that products with such weights may use.
    pub fn arithmetics(self) -> &'static [Arithmetic] {
        match self {
            Self::Bf16 | Self::Mxfp4 => &[Arithmetic::Bf16Dot, Arithmetic::F32Fma],
            Self::F32 | Self::Fp8 => &[Arithmetic::F32Fma],
            Self::Int8 | Self::Int4 | Self::Q4_0 | Self::Q4K | Self::Q6K | Self::Q8_0 => {
                &[Arithmetic::Int8Dot]
            }
        }
    }

    /// Type that products compute in.
    fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::Float32,
            _ => Dtype::Bfloat16,
        }
    }

    /// Returns the format of a matrix with the role `role`.
    pub fn format(self, role: MatrixRole) -> WeightFormat {
        let quantization = match self {
            Self::Fp8 if role == MatrixRole::Projection => {
                let group = Fp8Checkpoint::GROUP;
                return WeightFormat::Fp8 { group };
            }
            Self::Mxfp4 if role == MatrixRole::Projection => return WeightFormat::Mxfp4,
            Self::Bf16 | Self::F32 | Self::Fp8 | Self::Mxfp4 => Quantization::None,
            Self::Int8 => Quantization::Int8,
            Self::Int4 => Quantization::Int4,
            Self::Q4_0 | Self::Q4K | Self::Q6K | Self::Q8_0 => {
                return WeightFormat::Groups(self.groups(role));
            }
        };
        WeightFormat::of(quantization, role)
    }

    /// Returns the integers in groups of a matrix with the role `role`.
    fn groups(self, role: MatrixRole) -> GroupFormat {
        let plain = |bits, group| GroupFormat {
            bits,
            codes: Codes::Integers,
            group,
            factor_group: group,
            minimum: Minimum::None,
            factors: FactorType::F16,
        };
        let factor_group = GroupFormat::FACTOR_GROUP;
        match self {
            Self::Q4_0 => plain(4, 32),
            Self::Q4K if role == MatrixRole::Projection => GroupFormat {
                factor_group,
                minimum: Minimum::Own,
                ..plain(4, 32)
            },
            Self::Q8_0 => plain(8, 32),
            _ => GroupFormat {
                factor_group,
                ..plain(8, 16)
            },
        }
    }
}

impl KvFormat {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }

    pub fn dtype(self) -> KvCacheDtype {
        match self {
            Self::Bf16 => KvCacheDtype::Bfloat16,
            Self::F32 => KvCacheDtype::Float32,
            Self::Int8 => KvCacheDtype::Int8,
        }
    }

    /// Weights of the arithmetic that attention is computed in.
    pub fn weights(self) -> Weights {
        match self {
            Self::Bf16 | Self::Int8 => Weights::Bf16,
            Self::F32 => Weights::F32,
        }
    }
}

/// Settings of all measurements.
pub struct Setup {
    pub threads: usize,
    /// Name of the kernels; `None` for the fastest.
    pub kernels: Option<&'static str>,
    pub clock: Clock,
    pub repeat: usize,
    /// Bytes that data used in turn add up to.
    pub working_set: usize,
}

/// Seconds of repeated measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Times {
    /// Sums up at least one measurement.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self {
            median: seconds[seconds.len() / 2],
            min: seconds[0],
            max: seconds[seconds.len() - 1],
        }
    }
}

impl Setup {
    /// Measurements on `threads` threads.
    pub fn new(
        threads: usize,
        kernels: Option<&'static str>,
        repeat: usize,
        working_set: usize,
    ) -> Self {
        Self {
            threads,
            kernels,
            clock: Clock::for_threads(threads),
            repeat,
            working_set,
        }
    }

    /// A rank alone, on all threads.
    pub fn backend<B: Device>(&self, weights: Weights) -> Result<B, DeviceError> {
        self.rank(weights, self.threads, Box::new(Single::new()))
    }

    /// A rank of a group.
    pub fn rank<B: Device>(
        &self,
        weights: Weights,
        threads: usize,
        collective: Box<dyn Collective>,
    ) -> Result<B, DeviceError> {
        let options = DeviceOptions {
            device: DeviceConfig::default(),
            threads,
            dtype: weights.dtype(),
            cores: None,
            kernels: self.kernels,
            graphs: &[],
            collectives: Collectives::default(),
            folder: None,
        };
        B::open(&options, collective)
    }

    /// Times of repeated runs of `calls` calls each, per call. One run before them warms up.
    pub fn time(&self, calls: usize, mut call: impl FnMut()) -> Times {
        let mut run = || {
            let start = self.clock.seconds();
            (0..calls).for_each(|_| call());
            (self.clock.seconds() - start) / calls as f64
        };
        run();
        Times::of((0..self.repeat).map(|_| run()).collect())
    }
}

/// Packs a matrix of small numbers. Rows overlap in memory, so making them costs next to
/// nothing.
pub fn load<B: Device>(
    backend: &mut B,
    matrix: Matrix,
    format: WeightFormat,
) -> Result<B::Matrix, BackendError> {
    /// Bytes from one row to the next.
    const STRIDE: usize = 64;
    let len = (matrix.rows - 1) * STRIDE + 2 * matrix.cols;
    let mut state = 1u32;
    let value = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // ±0.0078 to 0.031 as bf16.
        let bits = 0x3c00 | (state >> 31) << 15 | (state >> 16) & 0xff;
        (bits as u16).to_le_bytes()
    };
    let bytes: Vec<u8> = (0..len.div_ceil(2)).flat_map(value).collect();
    let host = HostMatrix::Floats(HostFloats {
        cols: matrix.cols,
        dtype: CheckpointDtype::Bf16,
        blocks: vec![HostBlock {
            bytes: &bytes,
            offset: 0,
            stride: STRIDE,
            rows: matrix.rows,
        }],
    });
    backend.load_matrix(&host, format)
}

/// Activations `[rows, width]` with numbers around zero.
pub fn filled<B: Device>(
    backend: &mut B,
    rows: usize,
    width: usize,
    holds: Holds,
) -> Result<B::Tensor, BackendError> {
    let mut tensor = backend.tensor(rows, width, holds)?;
    backend.write(&mut tensor, fill);
    Ok(tensor)
}

/// A batch staged for operations, over pages of `page_size` tokens.
pub fn staged<B: Device>(
    backend: &mut B,
    batch: &Batch<'_>,
    page_size: usize,
) -> Result<B::Inputs, BackendError> {
    let mut inputs = backend.inputs(&InputLimits::of(batch, page_size))?;
    backend.stage(batch, &mut inputs)?;
    Ok(inputs)
}

/// Fills a row of values with numbers around zero.
pub fn fill(values: &mut [f32]) {
    let mut state = 1u32;
    for value in values {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
    }
}
