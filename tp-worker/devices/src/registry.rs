//! The table of devices, and what it stands for.

use lockstep_speculation::DrafterRegistry;

use crate::Device;

/// Work that is written once for all devices.
pub trait OnDevice {
    /// What comes of it.
    type Output;

    /// Does it on devices of `B`, with the algorithms that can draft there.
    fn run<B: Device>(self, drafters: &DrafterRegistry<B>) -> Self::Output;
}

/// Makes everything that there is once for each device, from its name here and
/// its backend.
macro_rules! devices {
    ($($device:ident: $backend:ty),+ $(,)?) => {
        /// The speculative algorithms of a program, for every device.
        #[derive(Clone)]
        pub struct Registry {
            $($device: lockstep_speculation::DrafterRegistry<$backend>,)+
        }

        impl Registry {
            /// No algorithm.
            pub fn empty() -> Self {
                Self { $($device: lockstep_speculation::DrafterRegistry::empty(),)+ }
            }

            /// EAGLE, EAGLE3, STANDALONE, NGRAM and NEXTN.
            pub fn builtin() -> Self {
                Self { $($device: lockstep_speculation::DrafterRegistry::builtin(),)+ }
            }

            /// Adds an algorithm under its name; a later one of the same name
            /// takes the earlier one's place.
            #[must_use]
            pub fn with(mut self, algorithm: impl $crate::OnEveryDevice) -> Self {
                let algorithm = std::sync::Arc::new(algorithm);
                $(self.$device.add(algorithm.clone());)+
                self
            }

            /// As configuration sees them.
            pub fn algorithms(&self) -> lockstep_types::Algorithms {
                // All devices have the same ones; the later replace the earlier.
                let mut all = lockstep_types::Algorithms::default();
                $(for known in self.$device.algorithms().iter() {
                    all.add(known.clone());
                })+
                all
            }

            /// Does `work` on the device that this machine has.
            pub fn run<W: $crate::OnDevice>(&self, work: W) -> W::Output {
                $crate::registry::on_first!(self, work, $($device: $backend),+)
            }
        }

        impl Default for Registry {
            /// [`Self::builtin`].
            fn default() -> Self {
                Self::builtin()
            }
        }

        /// An algorithm that can draft on every device.
        pub trait OnEveryDevice:
            $(lockstep_speculation::DrafterFactory<$backend> +)+ 'static
        {
        }

        impl<A> OnEveryDevice for A where
            A: $(lockstep_speculation::DrafterFactory<$backend> +)+ 'static
        {
        }

        /// What `lockstep doctor` says of all devices.
        pub fn findings() -> Vec<$crate::Finding> {
            [$(<$backend as $crate::Device>::findings(),)+].concat()
        }
    };
}

/// Does work on the first device of a list that is available; nobody asks
/// whether the last one is.
macro_rules! on_first {
    ($registry:expr, $work:expr, $device:ident: $backend:ty) => {
        $work.run::<$backend>(&$registry.$device)
    };
    ($registry:expr, $work:expr, $device:ident: $backend:ty, $($others:tt)+) => {
        if <$backend as $crate::Device>::is_available() {
            $work.run::<$backend>(&$registry.$device)
        } else {
            $crate::registry::on_first!($registry, $work, $($others)+)
        }
    };
}

pub(crate) use {devices, on_first};
