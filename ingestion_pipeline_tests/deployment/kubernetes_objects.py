"""Objects of Kubernetes checked by the models of its Python client, and by the Pod Security Standard `restricted`."""

import re
from collections.abc import Iterator
from typing import Any

_VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


def mistakes(manifest: dict[str, Any]) -> list[str]:
    """Return what is no field of the object, has another type, or is missing."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    return list(_mistakes(manifest, f"{version.capitalize()}{manifest['kind']}", f"{group} {manifest['kind']}"))


def _mistakes(value: Any, kind: str, place: str) -> Iterator[str]:
    from kubernetes.client import models

    if nested := re.fullmatch(r"list\[(.+)\]", kind):
        yield from [] if isinstance(value, list) else [f"{place} is no list"]
        for number, item in enumerate(value):
            yield from _mistakes(item, nested[1], f"{place}[{number}]")
    elif nested := re.fullmatch(r"dict\((\w+), (\w+)\)", kind):
        for key, item in value.items():
            yield from _mistakes(item, nested[2], f"{place}.{key}")
    elif kind in {"str", "int", "bool"}:
        yield from [] if type(value).__name__ == kind else [f"{place}: {value!r} is no {kind}"]
    elif (model := getattr(models, kind, None)) is not None:
        yield from _mistakes_of_model(value, model, place)


def _mistakes_of_model(value: Any, model: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place} is no mapping"
        return
    attributes = {json: name for name, json in model.attribute_map.items()}
    yield from (f"{place}.{key} is no field of {model.__name__}" for key in value.keys() - attributes.keys())
    known = {attributes[key]: item for key, item in value.items() if key in attributes}
    try:
        model(**known)
    except ValueError as error:
        yield f"{place}: {error}"
    for name, item in known.items():
        yield from _mistakes(item, model.openapi_types[name], f"{place}.{model.attribute_map[name]}")


def violations(pod: dict[str, Any]) -> list[str]:
    """Return which rules of the Pod Security Standard `restricted` the pod breaks."""
    own = pod.get("securityContext", {})
    broken = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    broken += [volume["name"] for volume in pod.get("volumes", ()) if not volume.keys() - {"name"} <= _VOLUMES]
    broken += ["runAsNonRoot"] if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0 else []
    broken += ["seccompProfile"] if own.get("seccompProfile") != {"type": "RuntimeDefault"} else []
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        context = container.get("securityContext", {})
        is_confined = context.get("allowPrivilegeEscalation") is False
        if not is_confined or context.get("capabilities") != {"drop": ["ALL"]} or context.get("privileged"):
            broken.append(container["name"])
    return broken
