package configs

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// folderActs is definition.acts as a model's folder names it for whoever opens it, or an adapter on it, which was
// trained with what it names itself; "": neither does. What is wrong with a folder is said where it is opened.
func folderActs(model, adapter string) (acts string) {
	for _, from := range []struct{ dir, file string }{{model, "config.json"}, {adapter, "adapter_config.json"}} {
		if from.dir == "" {
			continue
		}
		var config map[string]json.RawMessage // maps, since fields of a struct match names in any case
		var own map[string]any
		text, err := os.ReadFile(filepath.Join(from.dir, from.file))
		if err != nil || json.Unmarshal(text, &config) != nil || json.Unmarshal(config["lockstep"], &own) != nil {
			continue
		}
		if named, ok := own["acts"].(string); ok {
			acts = named
		}
	}
	return acts
}
