"""Builds each overlay of data/kubernetes as kustomize does, validates every resource by the schemas of Kubernetes, and prints all as JSON."""
import json
import pathlib
import sys

import kubernetes_validate
import yaml

VERSION = "1.33"


def load(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def identity(resource):
    return resource["kind"], resource["metadata"]["name"]


def merged(base, patch):
    """Merges as strategic merge patches do: maps by key, lists of named objects by name, all else replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {key: merged(base[key], patch[key]) if key in base and key in patch else base.get(key, patch.get(key))
                for key in [*base, *(key for key in patch if key not in base)]}
    if isinstance(base, list) and isinstance(patch, list) and all(isinstance(item, dict) and "name" in item for item in [*base, *patch]):
        known = {item["name"]: item for item in base}
        for item in patch:
            known[item["name"]] = merged(known[item["name"]], item) if item["name"] in known else item
        return list(known.values())
    return patch


def build(folder):
    [kustomization] = load(folder / "kustomization.yaml")
    known = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "generatorOptions", "patches"}
    assert set(kustomization) <= known, f"{folder}: {set(kustomization) - known}"
    resources = []
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        resources += build(path) if path.is_dir() else load(path)
    for generator in kustomization.get("configMapGenerator", []):
        data = {name: (folder / name).read_text() for name in generator["files"]}
        resources.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    for patch in kustomization.get("patches", []):
        for change in load(folder / patch["path"]):
            [place] = [place for place, resource in enumerate(resources) if identity(resource) == identity(change)]
            resources[place] = merged(resources[place], change)
    if namespace := kustomization.get("namespace"):
        for resource in resources:
            if resource["kind"] != "Namespace":
                resource["metadata"]["namespace"] = namespace
    return resources


root = pathlib.Path(sys.argv[1])
overlays = {folder.name: build(folder) for folder in sorted(root.iterdir()) if folder.name != "base"}
for name, resources in overlays.items():
    for resource in resources:
        try:
            kubernetes_validate.validate(resource, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f"{name}: {identity(resource)}: {error.path}: {error.message}")
print(json.dumps(overlays))
