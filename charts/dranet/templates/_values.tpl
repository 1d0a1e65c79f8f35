{{/* Checks every value against files/values.schema.json, and explains what is wrong: place, cause and fix. The checks know
the keywords of JSON Schema that the file uses. values.schema.json refuses nothing, because Helm would stop at its line. */}}

{{/* Check a value, from (dict "root" $ "schema" part "value" value "path" "a.b"). */}}
{{- define "dranet.checkValue" -}}
{{- $value := .value -}}
{{- $schema := .schema -}}
{{- if hasKey $schema "$ref" }}{{ $schema = merge (omit $schema "$ref") (get (get .root.dranetSchema "$defs") (base (get $schema "$ref"))) }}{{ end -}}
{{- $kind := include "dranet.kind" $value -}}
{{- $wanted := kindIs "slice" $schema.type | ternary $schema.type (list $schema.type) -}}
{{- $isWanted := or (and (not $schema.type) (ne $kind "null")) (has $kind $wanted) (and (eq $kind "integer") (has "number" $wanted)) -}}
{{- $context := dict "root" .root "schema" $schema "value" $value "path" .path "wanted" $wanted -}}
{{- if and (eq $kind "null") (or $schema.type $schema.enum) (not $isWanted) -}}
{{- include "dranet.refuseNull" $context -}}
{{- else if and (hasKey $schema "enum") (not (has $value $schema.enum)) -}}
{{- include "dranet.refuseChoice" $context -}}
{{- else if not $isWanted -}}
{{- include "dranet.refuseKind" $context -}}
{{- else if eq $kind "object" -}}
{{- include "dranet.checkMap" $context -}}
{{- else if eq $kind "array" -}}
{{- include "dranet.checkList" $context -}}
{{- else if eq $kind "string" -}}
{{- include "dranet.checkText" $context -}}
{{- else -}}
{{- include "dranet.checkNumber" $context -}}
{{- end -}}
{{- end -}}

{{/* The kind of a value as JSON Schema calls it. Helm reads numbers as floating point. */}}
{{- define "dranet.kind" -}}
{{- if kindIs "map" . }}object{{ else if kindIs "slice" . }}array{{ else if kindIs "bool" . }}boolean{{ else if kindIs "invalid" . }}null
{{- else if and (kindIs "string" .) (not (typeIs "json.Number" .)) }}string
{{- else if eq (toString . | float64 | floor) (toString . | float64) }}integer{{ else }}number{{ end -}}
{{- end -}}

{{/* A path with a key behind it; at the top there is no dot. */}}
{{- define "dranet.join" -}}
{{- join "." (compact .) -}}
{{- end -}}

{{- define "dranet.refuse" -}}
{{- include "dranet.wrong" (dict "root" .root "message" (printf "%s: %s" .path .message)) -}}
{{- end -}}

{{- define "dranet.refuseNull" -}}
{{- $_ := set .root "dranetUnreadable" true -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" "null is not possible here; leave the key out to have the default") -}}
{{- end -}}

{{/* A value of another kind would break the checks that come later. */}}
{{- define "dranet.refuseKind" -}}
{{- $_ := set .root "dranetUnreadable" true -}}
{{- $names := dict "string" "text" "integer" "a whole number" "number" "a number" "boolean" "true or false" "array" "a list" "object" "a map" -}}
{{- $kind := include "dranet.kind" .value -}}
{{- $words := list }}{{ range without .wanted "null" }}{{ $words = append $words (get $names .) }}{{ end -}}
{{- $written := toRawJson .value | trunc 60 -}}
{{- $fix := "" -}}
{{- if and (has "string" .wanted) (has $kind (list "integer" "number" "boolean")) -}}
{{- $fix = "; put it in quotes as you wrote it (YAML reads 1.0 as 1, and yes as true; with --set: --set-string)" -}}
{{- else if and (eq $kind "string") (regexMatch "^(true|false|[0-9]+(\\.[0-9]+)?)$" .value) -}}
{{- $fix = "; write it without quotes" -}}
{{- else if and (has "array" .wanted) (ne $kind "object") -}}
{{- $fix = printf "; write [%s]" $written -}}
{{- else if and (has "object" .wanted) .schema.properties -}}
{{- $fix = printf " with the keys %s" (keys .schema.properties | sortAlpha | join ", ") -}}
{{- end -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" (printf "%s is %s, and %s is needed%s" $written (eq $kind "boolean" | ternary "a boolean" (get $names $kind)) (join " or " $words) $fix)) -}}
{{- end -}}

{{- define "dranet.refuseChoice" -}}
{{- if not (kindIs "string" .value) }}{{ $_ := set .root "dranetUnreadable" true }}{{ end -}}
{{- $words := list }}{{ range .schema.enum }}{{ if kindIs "string" . }}{{ $words = append $words . }}{{ end }}{{ end -}}
{{- $near := kindIs "string" .value | ternary (include "dranet.nearest" (dict "word" (toString .value) "among" $words)) "" -}}
{{- $message := printf "%s is not one of %s" (toRawJson .value) (join ", " $words) -}}
{{- if gt (len $words) 12 }}{{ $message = printf "%s is not one of the %d possible words" (toRawJson .value) (len $words) }}{{ end -}}
{{- with $near }}{{ $message = printf "%s. Did you mean %s?" $message . }}{{ end -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" $message) -}}
{{- end -}}

{{- define "dranet.checkText" -}}
{{- $message := "" -}}
{{- if and .schema.pattern (not (regexMatch .schema.pattern .value)) -}}
{{- $message = printf "%q is not valid; %s" .value .schema.patternErrorMessage -}}
{{- else if lt (len .value) (.schema.minLength | default 0 | int) -}}
{{- $message = "it is empty; write a name" -}}
{{- else if and .schema.maxLength (gt (len .value) (int .schema.maxLength)) -}}
{{- $message = printf "%q has %d characters, and %d is the most" .value (len .value) (int .schema.maxLength) -}}
{{- end -}}
{{- with $message }}{{ include "dranet.refuse" (dict "root" $.root "path" $.path "message" .) }}{{ end -}}
{{- end -}}

{{- define "dranet.checkNumber" -}}
{{- $number := toString .value | float64 -}}
{{- if and (hasKey .schema "minimum") (lt $number (get .schema "minimum" | float64)) -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" (printf "%s is less than %v, the least that is possible" (toRawJson .value) .schema.minimum)) -}}
{{- else if and (hasKey .schema "maximum") (gt $number (get .schema "maximum" | float64)) -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" (printf "%s is more than %v, the most that is possible" (toRawJson .value) .schema.maximum)) -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkList" -}}
{{- $context := . -}}
{{- if lt (len .value) (.schema.minItems | default 0 | int) -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" "the list is empty, and needs an entry") -}}
{{- else if and .schema.uniqueItems (ne (len .value) (len (uniq .value))) -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" "an entry is there twice") -}}
{{- end -}}
{{- range $index, $item := .value -}}
{{- $label := kindIs "map" $item | ternary (get (kindIs "map" $item | ternary $item dict) "name" | default $index) $index -}}
{{- include "dranet.checkValue" (dict "root" $context.root "schema" $context.schema.items "value" $item "path" (printf "%s[%v]" $context.path $label)) -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkMap" -}}
{{- $context := . -}}
{{- $schema := .schema -}}
{{- $known := $schema.properties | default dict -}}
{{- $others := hasKey $schema "additionalProperties" | ternary (get $schema "additionalProperties") true -}}
{{- range $key, $item := .value -}}
{{- $path := include "dranet.join" (list $context.path $key) -}}
{{- if hasKey $known $key -}}
{{- include "dranet.checkValue" (dict "root" $context.root "schema" (get $known $key) "value" $item "path" $path) -}}
{{- else if kindIs "map" $others -}}
{{- include "dranet.checkValue" (dict "root" $context.root "schema" $others "value" $item "path" $path) -}}
{{- else -}}
{{- include "dranet.refuseKey" (dict "root" $context.root "key" $key "value" $item "path" $context.path "known" $known "isOpen" $others) -}}
{{- end -}}
{{- with $schema.propertyNames }}{{ if not (regexMatch .pattern $key) -}}
{{- include "dranet.refuse" (dict "root" $context.root "path" $path "message" (printf "the name is not valid; %s" .patternErrorMessage)) -}}
{{- end }}{{ end -}}
{{- end -}}
{{- range $schema.required -}}
{{- if not (hasKey $context.value .) -}}
{{- $_ := set $context.root "dranetUnreadable" true -}}
{{- include "dranet.refuse" (dict "root" $context.root "path" $context.path "message" (printf "%s is missing" .)) -}}
{{- end -}}
{{- end -}}
{{- if and $schema.minProperties (not .value) -}}
{{- include "dranet.refuse" (dict "root" .root "path" .path "message" "the map is empty, and needs an entry") -}}
{{- end -}}
{{- end -}}

{{/* Refuse a key that does not exist, from (dict "root" $ "path" "a" "key" "b" "value" value "known" properties "isOpen" bool):
with what to write instead where files/refused-values.yaml has it, else with the nearest key. In an open map only a key
that is nearly a known one is refused. */}}
{{- define "dranet.refuseKey" -}}
{{- $context := . -}}
{{- $instead := .root.dranetRefused -}}
{{- $path := include "dranet.join" (list .path .key) -}}
{{- $place := regexReplaceAll "^pools\\[[^]]*\\]\\." $path "" -}}
{{- if contains "settings." $place }}{{ $place = printf "settings.%s" (snakecase .key) }}{{ end -}}
{{- $inside := false -}}
{{- if kindIs "map" .value -}}
{{- range $key, $item := .value -}}
{{- with get $instead (printf "%s.%s" $place $key) -}}
{{- $inside = true -}}
{{- include "dranet.wrong" (dict "root" $context.root "message" (printf "%s.%s %s" $path $key .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $inside -}}
{{- else if hasKey $instead $place -}}
{{- include "dranet.wrong" (dict "root" .root "message" (printf "%s %s" $path (get $instead $place))) -}}
{{- else -}}
{{- $near := include "dranet.join" (list .path (include "dranet.nearest" (dict "word" .key "among" (keys .known | sortAlpha)))) -}}
{{- $elsewhere := include "dranet.findKey" (dict "root" .root "schema" .root.dranetSchema "key" .key "path" "") | splitList " " | compact | uniq -}}
{{- $fix := "" -}}
{{- if and (not .path) (eq (len $elsewhere) 1) (regexMatch ".[A-Z_]" .key) -}}
{{- $fix = printf "Did you mean %s?" (first $elsewhere) -}}
{{- else if ne $near .path -}}
{{- $fix = printf "Did you mean %s?" $near -}}
{{- else if and (not .path) $elsewhere (le (len $elsewhere) 3) -}}
{{- $fix = printf "Did you mean %s?" (join " or " $elsewhere) -}}
{{- else if and .path (le (len .known) 20) -}}
{{- $fix = printf "%s has %s" .path (keys .known | sortAlpha | join ", ") -}}
{{- else -}}
{{- $fix = "`helm show values` lists all" -}}
{{- end -}}
{{- if or (ne $near .path) (not .isOpen) -}}
{{- if .path }}{{ $_ := set .root "dranetUnreadable" true }}{{ end -}}
{{- include "dranet.refuse" (dict "root" .root "path" $path "message" (printf "there is no such value. %s" $fix)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Paths of values that end in a key, from (dict "root" $ "schema" part "key" key "path" "a"). A setting is found by the one
of its two names that is written in the same way. */}}
{{- define "dranet.findKey" -}}
{{- $context := . -}}
{{- $part := eq .path "settings" | ternary (get (get .root.dranetSchema "$defs") "settings") .schema -}}
{{- range $name, $below := $part.properties -}}
{{- $path := include "dranet.join" (list $context.path $name) -}}
{{- $isSame := eq (include "dranet.letters" $name) (include "dranet.letters" $context.key) -}}
{{- if and $isSame (eq (contains "_" $context.key) (contains "_" $name)) }}{{ $path }} {{ end -}}
{{- include "dranet.findKey" (dict "root" $context.root "schema" $below "key" $context.key "path" $path) -}}
{{- end -}}
{{- end -}}

{{- define "dranet.letters" -}}
{{- toString . | lower | replace "_" "" | replace "-" "" -}}
{{- end -}}

{{/* The word that is nearest to another one, from (dict "word" word "among" list); empty if none is near. Of two that are equally
near it is the one that is written alike: with or without underscores. */}}
{{- define "dranet.nearest" -}}
{{- $word := include "dranet.letters" .word -}}
{{- $nearest := "" -}}
{{- $most := 99 -}}
{{- range .among -}}
{{- $likeness := mul 2 (include "dranet.likeness" (list $word (include "dranet.letters" .)) | int) -}}
{{- if eq (contains "_" .) (contains "_" $.word) }}{{ $likeness = add 1 $likeness }}{{ end -}}
{{- if gt $likeness $most }}{{ $nearest = . }}{{ $most = $likeness }}{{ end -}}
{{- end -}}
{{- $nearest -}}
{{- end -}}

{{/* How alike two words are, from 0 to 100: the same letters in another order are very much so, else the share of pairs of
neighbouring letters that both have. */}}
{{- define "dranet.likeness" -}}
{{- $one := first . -}}
{{- $other := last . -}}
{{- if eq $one $other -}}100
{{- else if eq (splitList "" $one | sortAlpha | join "") (splitList "" $other | sortAlpha | join "") -}}99
{{- else -}}
{{- $left := include "dranet.pairs" $other | splitList " " | compact -}}
{{- $all := add (len $left) (max 0 (sub (len $one) 1)) -}}
{{- $shared := 0 -}}
{{- range include "dranet.pairs" $one | splitList " " | compact -}}
{{- if has . $left }}{{ $shared = add $shared 1 }}{{ $left = without $left . }}{{ end -}}
{{- end -}}
{{- div (mul 200 $shared) (max 1 $all) -}}
{{- end -}}
{{- end -}}

{{- define "dranet.pairs" -}}
{{- $word := . -}}
{{- range $index := until (max 0 (sub (len $word) 1) | int) }}{{ substr $index (add $index 2 | int) $word }} {{ end -}}
{{- end -}}
