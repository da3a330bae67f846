//! Plain computations that tests of devices compare with.

mod latent;

pub use latent::LatentText;
