//! Files for TLS, with clients and between nodes.

use std::path::PathBuf;

use lockstep_types::TlsFiles;

use super::ConfigError;
use crate::args::{ParallelArgs, ServerArgs};

/// An option that names a file, and the file as it was given.
type Given<'a> = (&'static str, Option<&'a PathBuf>);

/// Files of public ports. Clients need certificates only if roots are named.
pub(super) fn of_ports(args: &ServerArgs) -> Result<Option<TlsFiles>, ConfigError> {
    let certificate = ("--ssl-certfile", args.ssl_certfile.as_ref());
    let key = ("--ssl-keyfile", args.ssl_keyfile.as_ref());
    let roots = ("--ssl-ca-certs", args.ssl_ca_certs.as_ref());
    needs(certificate, key)?;
    needs(key, certificate)?;
    needs(roots, certificate)?;
    files(certificate, key, roots)
}

/// Files between nodes.
pub(super) fn of_nodes(
    args: &ParallelArgs,
    nnodes: usize,
) -> Result<Option<TlsFiles>, ConfigError> {
    let certificate = ("--dist-ssl-certfile", args.dist_ssl_certfile.as_ref());
    let key = ("--dist-ssl-keyfile", args.dist_ssl_keyfile.as_ref());
    let roots = ("--dist-ssl-ca-certs", args.dist_ssl_ca_certs.as_ref());
    for (one, other) in [(certificate, key), (key, roots), (roots, certificate)] {
        needs(one, other)?;
    }
    if nnodes == 1 && certificate.1.is_some() {
        return Err(ConfigError::conflict(
            certificate.0,
            "--nnodes 1",
            "one node exchanges nothing with others",
            "Leave the option out, or give --nnodes",
        ));
    }
    files(certificate, key, roots)
}

fn needs((option, given): Given<'_>, (other, needed): Given<'_>) -> Result<(), ConfigError> {
    if given.is_none() || needed.is_some() {
        return Ok(());
    }
    let why = "one is of no use without the other";
    Err(ConfigError::conflict(
        option,
        other,
        why,
        format!("Give {other} too"),
    ))
}

/// The files with absolute paths: processes open them again when the files have changed.
fn files(
    certificate: Given<'_>,
    key: Given<'_>,
    roots: Given<'_>,
) -> Result<Option<TlsFiles>, ConfigError> {
    let absolute = |(option, path): Given<'_>| {
        let path = path.map(|path| {
            std::path::absolute(path).map_err(|error| ConfigError::File {
                option,
                path: path.clone(),
                message: error.to_string(),
            })
        });
        path.transpose()
    };
    let (certificate, key) = (absolute(certificate)?, absolute(key)?);
    let client_roots = absolute(roots)?;
    Ok(certificate.zip(key).map(|(certificate, key)| TlsFiles {
        certificate,
        key,
        client_roots,
    }))
}
