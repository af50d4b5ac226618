package packaging

import (
	"fmt"
	"regexp"
	"strings"
)

// fields are those of the Kubernetes API's objects that the manifests may use,
// with their types: string, int, bool, quantity, labels (strings by name), an
// object of this table, or a list of one of these. A ! marks what the API
// requires. Names are as the API reference has them.
var fields = map[string]string{
	"Namespace":     "apiVersion!string kind!string metadata!ObjectMeta",
	"Service":       "apiVersion!string kind!string metadata!ObjectMeta spec!ServiceSpec",
	"DaemonSet":     "apiVersion!string kind!string metadata!ObjectMeta spec!DaemonSetSpec",
	"Job":           "apiVersion!string kind!string metadata!ObjectMeta spec!JobSpec",
	"Pod":           "apiVersion!string kind!string metadata!ObjectMeta spec!PodSpec",
	"ObjectMeta":    "name!string namespace:string labels:labels annotations:labels",
	"TemplateMeta":  "labels!labels annotations:labels",
	"ServiceSpec":   "clusterIP:string publishNotReadyAddresses:bool selector!labels ports![]ServicePort",
	"ServicePort":   "name:string port!int targetPort:int protocol:string",
	"DaemonSetSpec": "selector!LabelSelector template!PodTemplate updateStrategy:UpdateStrategy",
	"JobSpec":       "template!PodTemplate backoffLimit:int activeDeadlineSeconds:int ttlSecondsAfterFinished:int",
	"LabelSelector": "matchLabels!labels", "PodTemplate": "metadata!TemplateMeta spec!PodSpec",
	"UpdateStrategy": "type:string rollingUpdate:RollingUpdate", "RollingUpdate": "maxUnavailable:int",
	"PodSpec": "containers![]Container initContainers:[]Container volumes:[]Volume hostNetwork:bool dnsPolicy:string " +
		"automountServiceAccountToken:bool enableServiceLinks:bool terminationGracePeriodSeconds:int nodeSelector:labels " +
		"securityContext:PodSecurityContext restartPolicy:string affinity:Affinity",
	"PodSecurityContext": "runAsNonRoot:bool runAsUser:int runAsGroup:int fsGroup:int supplementalGroups:[]int seccompProfile:SeccompProfile",
	"SeccompProfile":     "type!string",
	"Affinity":           "podAntiAffinity:PodAntiAffinity",
	"PodAntiAffinity":    "preferredDuringSchedulingIgnoredDuringExecution:[]WeightedTerm",
	"WeightedTerm":       "weight!int podAffinityTerm!PodAffinityTerm",
	"PodAffinityTerm":    "topologyKey!string labelSelector:LabelSelector",
	"Container": "name!string image!string command:[]string args:[]string env:[]EnvVar ports:[]ContainerPort startupProbe:Probe " +
		"readinessProbe:Probe livenessProbe:Probe securityContext:SecurityContext resources:Resources volumeMounts:[]VolumeMount restartPolicy:string",
	"EnvVar": "name!string value:string valueFrom:EnvVarSource", "EnvVarSource": "fieldRef!FieldRef", "FieldRef": "fieldPath!string",
	"ContainerPort": "name:string containerPort!int hostPort:int protocol:string",
	"Probe":         "exec!Exec periodSeconds:int failureThreshold:int timeoutSeconds:int initialDelaySeconds:int", "Exec": "command![]string",
	"SecurityContext": "runAsNonRoot:bool runAsUser:int runAsGroup:int allowPrivilegeEscalation:bool readOnlyRootFilesystem:bool capabilities:Capabilities",
	"Capabilities":    "drop:[]string add:[]string",
	"Resources":       "requests:Amounts limits:Amounts", "Amounts": "cpu:quantity memory:quantity",
	"VolumeMount": "name!string mountPath!string readOnly:bool",
	"Volume":      "name!string hostPath:HostPath emptyDir:EmptyDir", "HostPath": "path!string type:string", "EmptyDir": "medium:string",
}

// group is the API group and version of each kind.
var group = map[string]string{"Namespace": "v1", "Service": "v1", "Pod": "v1", "DaemonSet": "apps/v1", "Job": "batch/v1"}

var (
	field    = regexp.MustCompile(`^(\w+)([!:])(\S+)$`)
	quantity = regexp.MustCompile(`^\d+(m|Ki|Mi|Gi)?$`)
)

// complaints lists what is wrong with a value of a type, by its path.
func complaints(at, kind string, value any) []string {
	switch {
	case strings.HasPrefix(kind, "[]"):
		list, ok := value.([]any)
		if !ok {
			return []string{fmt.Sprintf("%s: %v is no list", at, value)}
		}
		var found []string
		for i, v := range list {
			found = append(found, complaints(fmt.Sprintf("%s[%d]", at, i), kind[2:], v)...)
		}
		return found
	case fields[kind] != "":
		return objectComplaints(at, kind, value)
	case scalar(kind, value):
		return nil
	}
	return []string{fmt.Sprintf("%s: %v (%T) is no %s", at, value, value, kind)}
}

func scalar(kind string, value any) (ok bool) {
	switch kind {
	case "string":
		_, ok = value.(string)
	case "int":
		_, ok = value.(int)
	case "bool":
		_, ok = value.(bool)
	case "quantity":
		ok = quantity.MatchString(fmt.Sprint(value))
	case "labels":
		m, isMap := value.(map[string]any)
		for _, v := range m {
			if _, text := v.(string); !text {
				return false
			}
		}
		ok = isMap
	}
	return ok
}

func objectComplaints(at, kind string, value any) []string {
	object, ok := value.(map[string]any)
	if !ok {
		return []string{fmt.Sprintf("%s: %v is no %s", at, value, kind)}
	}
	var found []string
	types := map[string]string{}
	for word := range strings.FieldsSeq(fields[kind]) {
		m := field.FindStringSubmatch(word)
		types[m[1]] = m[3]
		if _, there := object[m[1]]; !there && m[2] == "!" {
			found = append(found, fmt.Sprintf("%s: no %s", at, m[1]))
		}
	}
	for name, v := range object {
		if types[name] == "" {
			found = append(found, fmt.Sprintf("%s: a %s has no field %s, as far as the table knows", at, kind, name))
			continue
		}
		found = append(found, complaints(at+"."+name, types[name], v)...)
	}
	return found
}
