//! The table of devices, and the items made from it.

use lockstep_speculation::DrafterRegistry;

use crate::Device;

/// Work that is written once for all devices.
pub trait OnDevice {
    /// The result of the work.
    type Output;

    /// Does the work on devices of `B`. `drafters` are the algorithms that can draft there.
    fn run<B: Device>(self, drafters: &DrafterRegistry<B>) -> Self::Output;
}

/// Makes one copy of each item below per device, from the device's name here, its kind and its
/// backend.
macro_rules! devices {
    ($($device:ident: $kind:ident, $backend:ty;)+) => {
        /// The speculative algorithms of a program, for every device, and the policies by which
        /// their depth may adapt.
        #[derive(Clone)]
        pub struct Registry {
            $($device: lockstep_speculation::DrafterRegistry<$backend>,)+
        }

        impl Registry {
            /// Makes a registry without algorithms, with the policies that every program has.
            pub fn empty() -> Self {
                Self { $($device: lockstep_speculation::DrafterRegistry::empty(),)+ }
            }

            /// Makes a registry of EAGLE, EAGLE3, NEXTN, DFLASH, STANDALONE, NGRAM and JUMP_FORWARD.
            pub fn builtin() -> Self {
                Self { $($device: lockstep_speculation::DrafterRegistry::builtin(),)+ }
            }

            /// Adds an algorithm under its name. It takes the place of an earlier one of that
            /// name.
            #[must_use]
            pub fn with(mut self, algorithm: impl $crate::OnEveryDevice) -> Self {
                let algorithm = std::sync::Arc::new(algorithm);
                $(self.$device.add(algorithm.clone());)+
                self
            }

            /// Adds a policy for adaptive depth under its name. It takes the place of an
            /// earlier one of that name.
            #[must_use]
            pub fn with_policy(
                mut self,
                policy: impl lockstep_adaptive::PolicyFactory + 'static,
            ) -> Self {
                let policy = std::sync::Arc::new(policy);
                $(self.$device.add_policy(policy.clone());)+
                self
            }

            /// Returns the algorithms in the form that configuration reads.
            pub fn algorithms(&self) -> lockstep_types::Algorithms {
                // All devices have the same algorithms.
                let of_devices = [$(self.$device.algorithms(),)+];
                of_devices.into_iter().next().unwrap_or_default()
            }

            /// Does `work` on a device of that kind.
            pub fn run<W: $crate::OnDevice>(
                &self,
                kind: lockstep_types::DeviceKind,
                work: W,
            ) -> W::Output {
                match kind {
                    $(lockstep_types::DeviceKind::$kind => {
                        work.run::<$backend>(&self.$device)
                    })+
                }
            }
        }

        impl Default for Registry {
            /// Makes [`Self::builtin`].
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

        /// Returns the lines of `lockstep doctor` about all devices.
        pub fn findings() -> Vec<$crate::Finding> {
            [$(<$backend as $crate::Device>::findings(),)+].concat()
        }
    };
}

pub(crate) use devices;

#[cfg(test)]
mod tests {
    use lockstep_adaptive::{AdaptiveConfig, Policies, Policy, PolicyFactory};
    use lockstep_speculation::DrafterRegistry;
    use lockstep_types::DeviceKind;

    use crate::{Device, OnDevice, Registry};

    /// The policy `static` under a user's own name.
    #[derive(Debug)]
    struct Named;

    impl PolicyFactory for Named {
        fn name(&self) -> &str {
            "mine"
        }

        fn summary(&self) -> &str {
            "for tests"
        }

        fn build(&self, config: &AdaptiveConfig) -> Box<dyn Policy> {
            let policies = Policies::builtin();
            let fixed = policies.find("static").expect("everybody has it");
            fixed.build(config)
        }
    }

    struct KnowsIt;

    impl OnDevice for KnowsIt {
        type Output = bool;

        fn run<B: Device>(self, drafters: &DrafterRegistry<B>) -> bool {
            drafters.policies().find("mine").is_some()
        }
    }

    #[test]
    fn a_policy_reaches_configuration_and_every_device() {
        for (registry, knows) in [
            (Registry::builtin(), false),
            (Registry::builtin().with_policy(Named), true),
            (Registry::empty().with_policy(Named), true),
        ] {
            for kind in [DeviceKind::Cpu, DeviceKind::Cuda] {
                assert_eq!(registry.run(kind, KnowsIt), knows);
            }
            let algorithms = registry.algorithms();
            assert_eq!(algorithms.policies().find("mine").is_some(), knows);
            assert!(algorithms.policies().find("static").is_some());
        }
    }
}
