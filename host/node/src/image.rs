//! Root file systems from tar archives, unpacked by the host's `tar`.

use crate::error::{NodeError, file};
use crate::rootfs::resolve;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Prefix of a name that a layer deletes from the layers below, and the name that deletes all of them.
const WHITEOUT: &str = ".wh.";
const WHITEOUT_ALL: &str = ".wh..wh..opq";

/// Unpacks an archive into `root`, which is made. An archive with a manifest.json (`docker save`) is a stack of
/// layers, any other one is the root file system itself (`docker export`).
pub(crate) fn unpack(archive: &Path, root: &Path) -> Result<(), NodeError> {
    fs::create_dir_all(root).map_err(file("create", root))?;
    let names = tar(archive, &["--list".as_ref()], archive)?;
    if !names.lines().any(|name| name == "manifest.json") {
        return tar(archive, &["--extract".as_ref(), "--directory".as_ref(), root.as_ref()], archive).map(drop);
    }
    let saved = root.with_extension("saved");
    fs::create_dir_all(&saved).map_err(file("create", &saved))?;
    tar(archive, &["--extract".as_ref(), "--directory".as_ref(), saved.as_ref()], archive)?;
    for layer in layers(archive, &saved)? {
        apply_layer(archive, &saved.join(layer), root)?;
    }
    fs::remove_dir_all(&saved).map_err(file("remove", &saved))
}

fn layers(archive: &Path, saved: &Path) -> Result<Vec<PathBuf>, NodeError> {
    let path = saved.join("manifest.json");
    let manifest: Value =
        serde_json::from_slice(&fs::read(&path).map_err(file("read", &path))?).map_err(file("read", &path))?;
    let layers = match manifest.as_array().map(Vec::as_slice) {
        Some([image]) => image["Layers"].as_array(),
        Some(images) => return Err(wrong(archive, format!("{} images in one archive, expected one", images.len()))),
        None => None,
    };
    let layers = layers.ok_or_else(|| wrong(archive, "manifest.json lists no layers".into()))?;
    let inside = |layer: &Path| layer.components().all(|c| matches!(c, Component::Normal(_)));
    let layers: Vec<PathBuf> = layers.iter().filter_map(Value::as_str).map(PathBuf::from).collect();
    match layers.iter().find(|layer| !inside(layer)) {
        Some(layer) => Err(wrong(archive, format!("layer '{}' lies outside of the archive", layer.display()))),
        None => Ok(layers),
    }
}

fn apply_layer(archive: &Path, layer: &Path, root: &Path) -> Result<(), NodeError> {
    // Deletions concern the layers below only, so they come first.
    for name in tar(layer, &["--list".as_ref()], archive)?.lines() {
        let path = Path::new(name);
        let (Some(last), Some(parent)) = (path.file_name().and_then(OsStr::to_str), path.parent()) else { continue };
        let Some(deleted) = last.strip_prefix(WHITEOUT) else { continue };
        let parent = resolve(root, &Path::new("/").join(parent))
            .ok_or_else(|| wrong(archive, format!("loop of links at '{name}'")))?;
        let parent = root.join(parent.strip_prefix("/").unwrap_or(&parent));
        if last == WHITEOUT_ALL {
            for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
                remove(&entry.path())?;
            }
        } else if !matches!(deleted, "" | "." | "..") {
            remove(&parent.join(deleted))?;
        }
    }
    let exclude = format!("--exclude={WHITEOUT}*");
    tar(layer, &["--extract".as_ref(), "--directory".as_ref(), root.as_ref(), exclude.as_ref()], archive).map(drop)
}

fn remove(path: &Path) -> Result<(), NodeError> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).map_err(file("remove", path)),
        Ok(_) => fs::remove_file(path).map_err(file("remove", path)),
        Err(_) => Ok(()),
    }
}

fn tar(input: &Path, arguments: &[&OsStr], archive: &Path) -> Result<String, NodeError> {
    let output = Command::new("tar")
        .args(["--numeric-owner", "--same-owner", "--same-permissions", "--file"])
        .arg(input)
        .args(arguments)
        .output()
        .map_err(|error| wrong(archive, format!("cannot run tar: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(wrong(archive, String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn wrong(archive: &Path, detail: String) -> NodeError {
    NodeError::Image { path: archive.to_path_buf(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(directory: &Path, archive: &Path) {
        let status = Command::new("tar").arg("-C").arg(directory).arg("-cf").arg(archive).arg(".").status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn layers_are_stacked_and_deletions_reach_below_only() {
        let top = std::env::temp_dir().join(format!("diecast-image-{}", std::process::id()));
        let (one, two, saved) = (top.join("one"), top.join("two"), top.join("save"));
        for path in [one.join("etc"), one.join("opt/old"), two.join("opt"), two.join("etc"), saved.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(one.join("etc/gone"), "1").unwrap();
        fs::write(one.join("etc/kept"), "1").unwrap();
        fs::write(one.join("opt/old/x"), "1").unwrap();
        fs::write(two.join("etc/.wh.gone"), "").unwrap();
        fs::write(two.join("opt/.wh..wh..opq"), "").unwrap();
        fs::write(two.join("opt/new"), "2").unwrap();
        pack(&one, &saved.join("1.tar"));
        pack(&two, &saved.join("2.tar"));
        fs::write(saved.join("manifest.json"), r#"[{"Layers":["1.tar","2.tar"]}]"#).unwrap();
        let archive = top.join("image.tar");
        let status = Command::new("tar")
            .arg("-C")
            .arg(&saved)
            .arg("-cf")
            .arg(&archive)
            .args(["1.tar", "2.tar", "manifest.json"])
            .status();
        assert!(status.unwrap().success());

        let root = top.join("root");
        unpack(&archive, &root).unwrap();
        assert!(root.join("etc/kept").exists() && root.join("opt/new").exists());
        assert!(!root.join("etc/gone").exists() && !root.join("opt/old").exists());
        assert!(!root.join("etc/.wh.gone").exists() && !root.join("opt/.wh..wh..opq").exists());

        let plain = top.join("plain.tar");
        pack(&one, &plain);
        unpack(&plain, &top.join("plain")).unwrap();
        assert!(top.join("plain/opt/old/x").exists());

        fs::write(&plain, "no archive").unwrap();
        assert!(matches!(unpack(&plain, &top.join("bad")), Err(NodeError::Image { .. })));
        fs::remove_dir_all(top).unwrap();
    }
}
