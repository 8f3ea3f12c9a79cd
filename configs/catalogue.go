package configs

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// catalogue holds the config.json of a published model in each file. What belongs to a tokenizer or to a storage format
// (ids of tokens, quantization_config) is left out: here a model is its graph.
//
//go:embed catalogue/*.json
var catalogue embed.FS

const catalogueDir = "catalogue/"

// Published lists the names of the catalogue, sorted.
func Published() (names []string) {
	files, err := catalogue.ReadDir(strings.TrimSuffix(catalogueDir, "/"))
	if err != nil {
		panic(err) // it is embedded
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".json"))
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
	return names
}

// PublishedConfig is the config.json of a published model; the error names the nearest one.
func PublishedConfig(name string) ([]byte, error) {
	text, err := catalogue.ReadFile(catalogueDir + name + ".json")
	if err == nil {
		return text, nil
	}
	return nil, fmt.Errorf("%q is not in the catalogue: %s", name, nearestPublished(name))
}

// nearestPublished suggests a name that begins alike, whatever its case, or one that is written alike.
func nearestPublished(name string) string {
	names := Published()
	i := slices.IndexFunc(names, func(n string) bool {
		return name != "" && strings.HasPrefix(strings.ToLower(n), strings.ToLower(name))
	})
	near := Nearest(name, names)
	if i >= 0 {
		near = names[i]
	}
	if near == "" {
		return "see lockstep shapes for the list"
	}
	return "did you mean " + near + "?"
}

// publish replaces model.catalogue by what it stands for: the family, and the published config.json under what the
// shape says of it. So a printed shape, and that of a run's folder, is whole by itself.
func (r *reader) publish() {
	m := &r.shape.Model
	name := m.Catalogue
	switch {
	case name == "":
		return
	case m.Path != "" || m.Family != "":
		r.report("model.catalogue", "catalogue sets the family and its sizes, remove path and family, or catalogue")
		r.bad["model.path"], r.bad["model.family"] = true, true
		return
	}
	text, err := PublishedConfig(name)
	if err != nil {
		r.report("model.catalogue", err.Error())
		r.bad["model.family"] = true
		return
	}
	config := jsonTable(text)
	m.Catalogue, m.Family = "", config["model_type"].(string)
	delete(config, "model_type")
	if err := fewerLayers(config, m.Config); err != nil {
		r.report("model.config", fmt.Sprintf("%s: %v", name, err))
	}
	overlay(config, m.Config)
	m.Config = config
}

// jsonTable reads a config.json of the catalogue as a shape's model.config holds it.
func jsonTable(text []byte) map[string]any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var table map[string]any
	if err := d.Decode(&table); err != nil {
		panic(err) // a test reads them all
	}
	return exactNumbers(table).(map[string]any)
}

// exactNumbers makes integers int64 and other numbers float64, as TOML does.
func exactNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		x, err := v.Float64()
		if err != nil {
			panic(err)
		}
		return x
	case []any:
		for i := range v {
			v[i] = exactNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = exactNumbers(v[k])
		}
	}
	return v
}

// overlay puts values on a table, into its tables key by key.
func overlay(table, values map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		below, isTable := table[key].(map[string]any)
		above, ok := values[key].(map[string]any)
		if isTable && ok {
			overlay(below, above)
		} else {
			table[key] = values[key]
		}
	}
}

// perLayer are the fields of config.json that say something of each layer, in a list or, the last, in a letter.
var perLayer = []string{"attn_type_list", "indexer_types", "layer_types", "layers_block_type", "mlp_layer_types",
	"hybrid_override_pattern"}

// fewerLayers cuts what config says of each layer to the number of layers that a shape asks for: the first ones stay. A
// wrapped text model has its own number.
func fewerLayers(config, asked map[string]any) error {
	const layers, text = "num_hidden_layers", "text_config"
	if inner, ok := config[text].(map[string]any); ok {
		innerAsked, _ := asked[text].(map[string]any)
		return fewerLayers(inner, innerAsked)
	}
	n, ok := asked[layers].(int64)
	if !ok || n < 1 { // not asked for, or refused where the model is built
		return nil
	}
	all := config[layers].(int64)
	if n > all {
		return fmt.Errorf("%s is %d, want at most the published %d", layers, n, all)
	}
	for _, name := range perLayer {
		switch list := config[name].(type) {
		case []any:
			config[name] = list[:n]
		case string:
			config[name] = list[:n]
		}
	}
	return nil
}
